"""Decoding from a recorded step: a CUDA graph in place of the calls of every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.attend import FixedStep, why_not_fixed
from longspan.errors import CacheError, LongspanError
from longspan.hf.attach import attachment_of
from longspan.hf.cache import LongspanCache
from longspan.hf.hooks import Attachment
from longspan.hf.interface import left_padding
from longspan.kernels import tiles

_WARM = 2  # runs before a recording: kernels are compiled and libraries take their memory then
_PLAIN = {"input_ids", "attention_mask", "position_ids", "cache_position", "past_key_values", "use_cache"}
_PLAIN |= {"return_dict", "logits_to_keep"}  # what a decoding step may be given
_TRUE = "use_cache", "return_dict"  # unless they are left out


@contextmanager
def graphed(model: PreTrainedModel, *, room: int = 1024) -> Iterator[None]:
    """Decode from a CUDA graph for the length of a ``with`` block.

    The first decoding step is recorded, and every later one replays it: where a token's kernels take less time than
    their launches, that is most of a step's time. Whatever is no such step (a prompt, several tokens at once, a call
    with labels or hidden states or gradients) runs as before. Tokens are those of the same kernels called one by one.
    Beam search moves the cache at every step and is refused.

    Args:
        model: extended, all of its layers, on one CUDA device, with a method that keeps keys by their index alone.
        room: tokens the cache makes room for at a time; the step is recorded again when they are used up.

    Raises:
        LongspanError: the model, its method or its device cannot be recorded; says which, and why.
        ValueError: ``room`` is less than 1.
    """
    if type(room) is not int or room < 1:
        raise ValueError(f"room is a number of tokens from 1, not {room!r}")
    attachment = attachment_of(model)
    if attachment is None:
        raise LongspanError("the model is not extended: call longspan.extend(model, ...) first")
    if (reason := _why_not(model, attachment)) is not None:
        raise LongspanError(f"decoding cannot be recorded: {reason}; leave longspan.graphed out")
    steps, forward = _Steps(model, attachment, room), model.forward

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        cache = steps.decodes(args, kwargs)
        return steps(cache, kwargs) if cache is not None else forward(*args, **kwargs)

    model.forward = run  # an instance's own attribute, before its class's
    try:
        yield
    finally:
        vars(model).pop("forward", None)


def record(run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """A CUDA graph of ``run``: what it returned, in memory that each replay fills anew, and the replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return out, graph.replay


def why_no_graph(device: torch.device) -> str | None:
    """Why nothing can be recorded on a device, or None."""
    return None if device.type == "cuda" else f"CUDA graphs are for a GPU, and the model is on {device}"


def _why_not(model: PreTrainedModel, attachment: Attachment) -> str | None:
    if (reason := why_not_fixed(attachment.attender)) is not None:
        return reason
    stock = next((layer for layer in attachment.layers if layer.rope is None), None)
    if stock is not None:
        return f"{stock.name} stayed stock ({stock.reason}), and its own cache grows by new tensors"
    if attachment.report.kv_tier != "device":
        return f"kv_tier={attachment.report.kv_tier!r} brings keys from elsewhere at every step"
    if attachment.attender.impl not in ("auto", "triton"):
        return f"it runs on Triton's kernels, and impl={attachment.attender.impl!r} was asked for"
    devices = {x.device for x in model.parameters()}
    if len(devices) > 1:
        return f"the model lies on several devices: {', '.join(sorted(map(str, devices)))}"
    return why_no_graph(model.device) or tiles.why_not(torch.empty(0, dtype=model.dtype, device=model.device))


@dataclass
class _Recorded:
    """A recorded step, and what it was recorded on."""

    cache: LongspanCache
    memory: list[int]  # where the cache's tensors lie
    padding: tuple[int, ...]
    step: FixedStep
    ids: Tensor
    out: Any
    replay: Callable[[], None]


class _Steps:
    """Decoding steps of one model, recorded where there is no recording that fits."""

    def __init__(self, model: PreTrainedModel, attachment: Attachment, room: int) -> None:
        self.model, self.attachment, self.room, self.forward = model, attachment, room, model.forward
        self._made: _Recorded | None = None
        self._others_ran = True

    def decodes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LongspanCache | None:
        """The cache of a call that is a decoding step; None for any other, which may leave the cache elsewhere."""
        ids, cache, mask = (kwargs.get(name) for name in ("input_ids", "past_key_values", "attention_mask"))
        others = [x for name, x in kwargs.items() if name not in _PLAIN and x is not None and x is not False]
        one = isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[1] == 1
        one = one and (mask is None or isinstance(mask, Tensor) and mask.dim() == 2)
        plain = one and not args and not others and False not in (kwargs.get(name, True) for name in _TRUE)
        observed = self.attachment.observer is not None or self.attachment.attender.observer is not None
        if plain and isinstance(cache, LongspanCache) and not torch.is_grad_enabled() and not observed:
            held = {store.length for store in cache.stores}
            if len(held) == 1 and held != {0}:
                return cache
        self._others_ran = True
        return None

    def __call__(self, cache: LongspanCache, kwargs: dict[str, Any]) -> Any:
        """One step, from the recording."""
        ids, past = kwargs["input_ids"], cache.stores[0].length
        self.attachment.check(cache)
        mask = kwargs.get("attention_mask")
        cache.accept(left_padding(mask, ids.shape[0], past + 1), mask is not None, past)
        assert cache.padding is not None
        made = self._made
        if made is None or not self._fits(made, cache, past, cache.padding):
            made = self._record(cache, past, cache.padding, ids)
        made.ids.copy_(ids)
        made.step.move(past)
        made.replay()
        for store in cache.stores:
            store.length += 1
        fields = {name: x.clone() if isinstance(x, Tensor) else x for name, x in made.out.items()}
        return type(made.out)(**fields)

    def _fits(self, made: _Recorded, cache: LongspanCache, past: int, padding: tuple[int, ...]) -> bool:
        if made.cache is not cache or past >= made.step.capacity or made.padding != padding:
            return False
        if made.memory == _memory(cache):
            return True
        if not self._others_ran:
            raise CacheError(
                "the cache was moved between two decoding steps, as beam search does, and a step would be recorded "
                "each time; run that without longspan.graphed"
            )
        return False

    def _record(self, cache: LongspanCache, past: int, padding: tuple[int, ...], ids: Tensor) -> _Recorded:
        self._made = None  # its memory goes first
        for store in cache.stores:
            store.reserve(past + self.room)
        capacity = min(x.shape[2] for store in cache.stores for x in store.room)
        step = FixedStep(self.attachment.attender, padding, capacity, self.model.device)
        with torch.inference_mode(False), torch.no_grad():
            own = ids.clone()
        step.move(past)
        cache.fixed = step
        try:
            out, replay = record(lambda: self.forward(input_ids=own, past_key_values=cache, use_cache=True))
        except LongspanError:
            raise
        except Exception as error:
            raise LongspanError(
                f"{type(self.model).__name__} cannot be recorded: {error}; leave longspan.graphed out"
            ) from error
        finally:
            cache.fixed = None
        self._made, self._others_ran = _Recorded(cache, _memory(cache), padding, step, own, out, replay), False
        return self._made


def _memory(cache: LongspanCache) -> list[int]:
    return [x.data_ptr() for store in cache.stores for x in store.room]
