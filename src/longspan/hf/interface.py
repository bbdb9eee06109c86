"""The two functions transformers calls: one makes masks, one attends. Both are registered under ``NAME``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch.autograd import forward_ad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from longspan.attend import ForwardState
from longspan.errors import LongspanError
from longspan.hf.untraced import untraced
from longspan.methods import Method

NAME = "longspan"  # contains no word that transformers gives a meaning, such as "flash" or "sdpa"


# The call that a hook passes into its layer's attention function: it takes the module, q, k, v, the mask, and the rest.
AttentionCall = Callable[[nn.Module, Tensor, Tensor, Tensor, Any, dict[str, Any]], tuple[Tensor, Tensor | None]]


class NotATensor(LongspanError, AttributeError):
    """A mask was taken for a tensor; an ``AttributeError`` for those who ask whether there is an attribute."""


def _refuse_stock(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotATensor(
        "a layer without longspan received longspan's mask: the layer or its config belongs to another model; set its "
        "modules' config to that of this model, call longspan.restore(model) and extend it again"
    )


class Mask:
    """The source of a mask: the padding for attached layers, any dense form for the layers left stock.

    A dense mask of a long prompt takes gigabytes, so none is made unless a stock layer asks for it. Use of it as a
    tensor raises ``NotATensor``.
    """

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __or__ = __invert__ = _refuse_stock
    __lt__ = __gt__ = _refuse_stock
    __torch_function__ = classmethod(_refuse_stock)

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self.given: Tensor | None = arguments["attention_mask"]  # ``[B, tokens]``, as the caller passed it
        self.state = ForwardState()  # a mask is made once a forward and reaches every attached layer
        self._dense: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if hasattr(Tensor, name):
            _refuse_stock()
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def __getitem__(self, index: Any) -> Mask:
        """All of it; a part of it raises."""
        # Gemma 4 cuts the masks of layers that share keys down to the tokens whose logits are asked for.
        if isinstance(index, tuple) and all(part in (slice(None), slice(0, None)) for part in index):
            return self
        _refuse_stock()

    @cached_property
    def padding(self) -> tuple[int, ...]:
        """Padding tokens at the start of each row of the batch."""
        kwargs = self._arguments
        if kwargs["mask_function"] is not causal_mask_function:
            raise LongspanError(
                "this forward modifies the causal mask (packed sequences, image blocks, a prefix or a sliding window); "
                "longspan attends causally: pass one sequence per row, with an attention_mask for padding, to a model "
                "whose config has sliding_window=None"
            )
        return left_padding(kwargs["attention_mask"], kwargs["batch_size"], kwargs["kv_length"])

    def dense(self, implementation: str) -> Any:
        """The mask as the named attention implementation wants it."""
        if implementation not in self._dense:
            self._dense[implementation] = ALL_MASK_ATTENTION_FUNCTIONS[implementation](**self._arguments)
        return self._dense[implementation]


def left_padding(mask: Tensor | None, batch: int, length: int) -> tuple[int, ...]:
    """Padding tokens at the start of each row of a mask.

    Args:
        mask: ``[B, N]`` with ``B = batch`` and ``N = length``, zero at padding; None if there is none.

    Raises:
        LongspanError: it has another number of rows, another length, or a hole.
    """
    if mask is None:
        return (0,) * batch
    if len(mask) != batch:
        raise LongspanError(f"the attention_mask has {len(mask)} rows and the input has {batch}; pass a row for each")
    if mask.shape[-1] != length:
        raise LongspanError(
            f"the attention_mask covers {mask.shape[-1]} tokens and the cache and input have {length}; pass a mask of "
            "all tokens, those in the cache included"
        )
    real = mask.bool()
    # Tokens after the last real one are computed and never seen: see ``refuse_right_padding``.
    ends = length - real.flip(-1).int().argmax(-1)
    pads = torch.where(real.any(-1), real.int().argmax(-1), length)
    if bool((real.sum(-1) != torch.where(real.any(-1), ends - pads, 0)).any()):
        raise LongspanError(
            "the attention_mask has padding inside a row or at its end; pad at the start of rows "
            "(tokenizer.padding_side = 'left')"
        )
    return tuple(pads.tolist())


def refuse_right_padding(mask: Tensor, method: Method) -> None:
    """Raise if rows of a mask ``[B, N]`` end in padding and the method's output depends on all tokens of a call."""
    if (method.call_dependent or method.length_dependent) and bool((mask.any(-1) & (mask[:, -1] == 0)).any()):
        raise LongspanError(
            f"the attention_mask has padding at the end of a row, which would change what {method.name} computes: it "
            "depends on all tokens of a call; pad at the start of rows (tokenizer.padding_side = 'left')"
        )


@untraced
def _make_mask(**arguments: Any) -> Mask:
    return Mask(arguments)


@untraced
def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    longspan: AttentionCall | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    call = longspan or _recorder.get()
    if call is None:
        raise LongspanError(
            f"{type(module).__name__} (layer {getattr(module, 'layer_idx', '?')}) runs under longspan's attention but "
            "has no longspan hook: it was added after extend, its hooks were removed, or its config is "
            "that of an extended model; call longspan.restore(model) and extend it again. If it reads images or sound: "
            "an extended model reads only text"
        )
    if transforming():
        _refuse_transforms(query, key, value)
    return call(module, query, key, value, attention_mask, kwargs)


def transforming() -> bool:
    """Whether torch.func transforms something, or torch.autograd.forward_ad differentiates it."""
    return forward_ad._current_level >= 0 or peek_interpreter_stack() is not None


def _refuse_transforms(*tensors: Tensor) -> None:
    """Raise if tensors of any shape have a tangent, or belong to a function that torch.func transforms."""
    if any(is_functorch_wrapped_tensor(x) or forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise LongspanError(
            "the model is transformed by torch.func (vmap, grad, jvp) or differentiated by torch.autograd.forward_ad, "
            "which longspan's kernels do not follow; call longspan.restore(model) first"
        )


# Stands in for a layer's call while a model is probed, when its attention modules are not known yet. Each thread has
# its own, so that models may be probed side by side.
_recorder: ContextVar[AttentionCall | None] = ContextVar("longspan_recorder", default=None)


@contextmanager
def recording(call: AttentionCall) -> Iterator[None]:
    """Send the attention calls of layers without a hook, made by this thread, to ``call``."""
    token = _recorder.set(call)
    try:
        yield
    finally:
        _recorder.reset(token)


def register() -> None:
    """Make ``NAME`` known to transformers; does nothing the second time."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _make_mask)


def stock_attention(
    implementation: str, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """The layer's attention as the model ran it before, with the true mask.

    Args:
        q, k, v: ``[B, H, T, D]``, ``[B, Hkv, N, D]``, ``[B, Hkv, N, Dv]``.

    Returns:
        ``[B, T, H, Dv]``, and the second result of ``implementation``: weights or None.
    """
    run: Callable[..., tuple[Tensor, Tensor | None]] = (
        sys.modules[type(module).__module__].eager_attention_forward  # each model file has its own
        if implementation == "eager"
        else ALL_ATTENTION_FUNCTIONS[implementation]
    )
    return run(module, q, k, v, mask.dense(implementation) if isinstance(mask, Mask) else mask, **kwargs)


class _InferenceOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, _source: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise LongspanError("longspan has no backward pass; call longspan.restore(model) before training")


def inference_only(out: Tensor, *sources: Tensor) -> Tensor:
    """``out``, computed without a graph, tied to its ``sources`` so that a backward pass raises and loses no gradient.

    All have any shape.
    """
    tracked = [source for source in sources if source.requires_grad]
    return _InferenceOnly.apply(out, tracked[0]) if tracked and torch.is_grad_enabled() else out
