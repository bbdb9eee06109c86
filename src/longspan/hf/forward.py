"""One forward of an extended model: what it was given, and whether what is attached is what ran."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from longspan.attend import ForwardState, LayerCall
from longspan.drafting import Drafts
from longspan.errors import LongspanError
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.interface import NAME
from longspan.hf.position_ids import Numbering, check_form, numbering
from longspan.memory import KVStore
from longspan.memory.libc import give_back
from longspan.model.layer import Layer, unrotated
from longspan.model.unwrap import is_a

# Arguments of transformers' continuous batching and padding-free collators beside packed sequences.
_PACKED = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "block_table", "read_index", "write_index", "seq_idx"})

_LONG = 1024  # tokens of a forward whose tensors are worth the call that returns their memory
_FAKE = "torch._subclasses.fake_tensor", "FakeTensor"  # without numbers, of torch.export

# Attention of a layer whose tokens are stored: queries, keys and values, unrotated, the layer's call and its store.
StoredRun = Callable[[Tensor, Tensor, Tensor, LayerCall, KVStore], Tensor]
# Sees what reaches the attention of an attached layer, before anything is done to it: the layer, its unrotated queries
# [B, H, T, D], keys [B, Hkv, T, D] and values [B, Hkv, T, Dv], and the number of padding tokens that each row begins
# with, those in the cache counted in.
InputObserver = Callable[[Layer, Tensor, Tensor, Tensor, tuple[int, ...]], None]


class NeverCopied:
    """A part of an extended model that would be of no use in a copy, nor in another process."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise LongspanError(
            "an extended model cannot be pickled or copied: the attachment belongs to this model; call "
            "longspan.restore(model) before, or model.save_pretrained(folder), which keeps the weights"
        )


class Filled(Protocol):
    """A cache as the forward that fills it needs it; see ``longspan.hf.cache.LongspanCache``."""

    numbering: Numbering | None


@dataclass(slots=True, eq=False)
class Forward:
    """One forward: what its layers tell each other and its end.

    Attributes:
        config: the decoder's, which was set to longspan's attention when the forward began.
        positions: ``position_ids`` as passed, until a layer has compared them.
        mask: ``attention_mask`` ``[B, tokens]`` as passed.
        expected: indices of the attached layers that are to attend.
        run: attends in place of the attender, if it is not None; whoever gave it has checked padding and cache.
        cache: the cache that it fills, or None.
        attended: indices of those that attended so far.
        norms: how many norms after a rotation were put off so far.
        guesses: of each of its last tokens that is a guess, and is attended as if it came alone, what its layers share.
        fits: whether what it was given passed the checks before its first layer.
        outer: the forward of the same model that this one was called from, or None.
        thread: the thread that it runs in.
    """

    config: Any
    positions: Tensor | None
    mask: Tensor | None
    expected: list[int]
    run: StoredRun | None = None
    cache: Filled | None = None
    attended: list[int] = field(default_factory=list)
    norms: int = 0
    guesses: list[ForwardState] = field(default_factory=list)
    fits: bool = False
    outer: Forward | None = None
    thread: int = field(default_factory=get_ident)
    _bare: tuple[Any, Any] = (None, None)  # the first tensor of what ``bare`` was given last, and what it gave

    @property
    def over(self) -> bool:
        """Whether the model was restored since: of a forward that an interrupt ended, nothing else tells its cache."""
        attention: str = self.config._attn_implementation
        return attention != NAME

    def bare(self, position_embeddings: Any) -> Any:
        """``unrotated``, made once for all layers that are given the same tensors."""
        first = position_embeddings if isinstance(position_embeddings, Tensor) else position_embeddings[0]
        if self._bare[0] is not first:
            self._bare = first, unrotated(position_embeddings)
        return self._bare[1]

    def compare(self, padding: Sequence[int], past: int, tokens: int) -> None:
        """Raise unless ``position_ids`` number the tokens as longspan does; once a forward."""
        assert self.positions is not None
        before = None if self.cache is None or past == 0 else self.cache.numbering
        numbered = numbering(self.positions, self.mask, padding, past, tokens, before)
        if self.cache is not None:
            self.cache.numbering = numbered
        self.positions = None


def refuse_inputs(kwargs: dict[str, Any]) -> None:
    """Raise if a forward is given what longspan cannot read.

    That is several sequences in one row, a cache in pages, no tokens, tokens that stand for others while the model is
    traced, or ``position_ids`` that cannot belong to them.
    """
    packed = [] if _PACKED.isdisjoint(kwargs) else sorted(x for x in _PACKED & kwargs.keys() if kwargs[x] is not None)
    if packed:
        raise LongspanError(
            f"this forward received {', '.join(packed)}: packed sequences, or continuous batching with a paged cache, "
            "which longspan does not support; pass one sequence per row, or call longspan.restore(model) first"
        )
    if kwargs.get("is_causal") is False:
        raise LongspanError("longspan attends causally: call without is_causal=False")
    ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
    tokens = embeds if ids is None else ids
    if torch._C._get_tracing_state() is not None or (type(tokens) is not Tensor and is_a(tokens, *_FAKE)):
        raise LongspanError(
            "the model is being traced (torch.jit.trace, torch.onnx.export or torch.export), and the graph would not "
            "include what longspan computes in kernels and by the length of a text; call longspan.restore(model) first"
        )
    rows = None
    if isinstance(tokens, Tensor) and tokens.dim() > 1:
        if 0 in tokens.shape[:2]:
            raise LongspanError(
                f"the input has no tokens: {'inputs_embeds' if ids is None else 'input_ids'} is {list(tokens.shape)}; "
                "pass at least one token in each of at least one row"
            )
        rows = tokens.shape[0]
    if (positions := kwargs.get("position_ids")) is not None:
        check_form(positions, rows)


class ThreadState(threading.local):
    """What a thread's forwards of a model are in.

    Attributes:
        running: the forward that it is in. run: see ``Forward``; of the forwards that follow.
        began: whether the decoder ran since the model around it began. uncached: whether the caller passed no cache.
        answer: the answer that is drafted, as the model's steps are then. drafts: what was, for the last one.
    """

    running: Forward | None = None
    run: StoredRun | None = None
    answer: Any = None
    drafts: Drafts | None = None
    began, uncached = True, False


def refuse_other_attention(implementation: Any, ours: str) -> None:
    """Raise if the model was set to another attention than the one that was attached."""
    if implementation != ours:
        raise LongspanError(
            f"the model's attention was set to {implementation!r} after longspan.extend, which would ignore "
            "positions; call longspan.extend(model, ...) again to continue with longspan, or longspan.restore(model)"
        )


def finish(running: Forward, hidden: Tensor) -> None:
    """Raise unless every attached layer attended once, and return a prompt's memory to the system.

    Args:
        hidden: the decoder's last hidden states, ``[B, T, D]``.
    """
    _refuse_missing(running.attended, running.expected)
    if hidden.is_cpu and hidden.shape[1] >= _LONG:
        give_back()


def _refuse_missing(attended: list[int], expected: list[int]) -> None:
    """Raise unless every attached layer, by its index, attended once."""
    if attended == expected or sorted(attended) == expected:
        return
    several = sorted({index for index in attended if attended.count(index) > 1})
    which = [index for index in expected if index not in attended]
    did = f"layers {several} attended more than once" if several else f"layers {which} did not attend through longspan"
    raise LongspanError(
        f"{did}: after longspan.extend the layer, its hooks, its config or its attention was replaced, so the output "
        "is invalid. Call longspan.restore(model), and extend it again as it is now"
    )


def refuse_strange(layer: Layer, running: Forward, cache: Filled | None) -> None:
    """Raise if the layer was given another cache than the decoder, or lost the hooks on its norms."""
    if running.cache is not cache:
        raise LongspanError(
            f"{layer.name} received a different cache than the model ({type(cache).__name__}); pass "
            f"{CACHE_ARGUMENT} to the model, with longspan.new_cache(model) if you keep the cache"
        )
    if layer.norms is not None:
        if running.norms != 2:
            raise LongspanError(
                f"{layer.name}: longspan's hooks on its norms were removed; call longspan.restore(model) and "
                "extend it again"
            )
        running.norms = 0
