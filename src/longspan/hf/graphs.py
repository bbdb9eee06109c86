"""Decoding from a CUDA graph of a step, in place of the model's modules."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from transformers import PreTrainedModel

from longspan.attend import RecordedStep
from longspan.errors import CacheError, LongspanError, check_count
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.attach import attached_to, attachment_of
from longspan.hf.cache import LongspanCache, StoreLayer
from longspan.hf.hooks import Attachment
from longspan.hf.interface import left_padding
from longspan.hf.position_ids import numbering
from longspan.hf.steps import stepped_cache
from longspan.kernels.gpu import tiles
from longspan.memory import Slot
from longspan.model.describe import unrecordable
from longspan.model.unwrap import unwrap

_WARM = 2  # runs before a recording: kernels are compiled and libraries take their memory then
_CACHE = object()  # stands for the cache in what a model returns


@contextmanager
def graphed(model: PreTrainedModel, *, room: int = 1024) -> Iterator[None]:
    """Decode from a CUDA graph for the length of a ``with`` block.

    The first decoding step of a cache is recorded as a CUDA graph, and later steps replay it. This saves the
    kernel launches, which take longer than the kernels of a single token. The tokens are those of the same kernels
    without a graph, up to rounding. Beam search reallocates the cache at every step and is refused.

    Other calls run as before: a prompt, several tokens at once, a call with labels or hidden states; and, with a
    warning, calls with gradients or autocast. Hooks, adapters and weights of the model are those of the recording.

    Args:
        model: extended, all of its layers, on one GPU, with a method that keeps keys by their index alone, with ESA, or
            with LongHeads, whose tokens that fill a chunk run as before.
        room: tokens that the cache allocates at a time; the step is recorded again when they are used.

    Raises:
        LongspanError: the model, its method or its device cannot be recorded, as a CPU; with the reason.
        ValueError: ``room`` is less than 1.
    """
    room = check_count("room", room)
    model = unwrap(model)
    attachment = attached_to(model)
    if isinstance(model.forward, _Decoding):
        raise LongspanError("the model is inside longspan.graphed already")
    reason = (
        ("its answers are drafted, in steps of several tokens" if attachment.drafting is not None else None)
        or unrecordable(model, attachment.attender, attachment.layers, attachment.report.kv_tier)
        or why_no_graph(model.device)
        or tiles.unsupported_reason(torch.empty(0, dtype=model.dtype, device=model.device))
    )
    if reason is not None:
        raise _unrecorded(reason)
    replaced = vars(model).get("forward")
    # An instance's own attribute, before its class's.
    model.forward = _Decoding(model, attachment, _CudaGraphs(model, attachment, room))
    try:
        yield
    finally:
        vars(model).pop("forward", None)
        if replaced is not None:
            model.forward = replaced


def record(run: Callable[[], Any], device: torch.device) -> tuple[Any, Callable[[], None]]:
    """A CUDA graph of ``run``: what it returned, in memory that each replay fills anew, and the replay."""
    with torch.cuda.device(device):
        stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        # Around both: a capture that fails leaves its stream behind as the current one.
        with torch.cuda.stream(stream):
            for _ in range(_WARM):
                run()
            with torch.cuda.graph(graph, stream=stream):
                out = run()
        torch.cuda.current_stream().wait_stream(stream)

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return out, replay


def why_no_graph(device: torch.device) -> str | None:
    """Why a device cannot record a graph, or None."""
    return None if device.type == "cuda" else f"CUDA graphs need a GPU, and the model is on {device}"


@dataclass
class _GraphRecording:
    """A recorded step of one cache, and what it was recorded on."""

    memory: list[tuple[int, ...]]  # where the cache's tensors lie, and how
    padding: tuple[int, ...]
    step: RecordedStep
    ids: Tensor
    out: list[Any]  # the leaves of what the model returned, without the cache
    form: TreeSpec
    replay: Callable[[], None]
    others_ran: bool = False  # calls since that are no decoding steps, and may have moved the cache


def _unrecorded(reason: object) -> LongspanError:
    return LongspanError(
        f"decoding cannot be recorded: {reason}; call the model without longspan.graphed (`--no-graphed`)"
    )


class _Decoding:
    """The forward of a model whose decoding steps come from what was recorded."""

    def __init__(self, model: PreTrainedModel, attachment: Attachment, steps: _CudaGraphs) -> None:
        update_wrapper(self, model.forward)  # transformers looks at what it takes
        self.model, self.attachment, self.steps, self.forward = model, attachment, steps, model.forward
        self._names = list(inspect.signature(model.forward).parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(self._names, args, strict=False)) | kwargs
        cache = self._decodes(arguments)
        out = None if cache is None else self._step(cache, arguments)
        return self.forward(*args, **kwargs) if out is None else out

    def _decodes(self, arguments: dict[str, Any]) -> LongspanCache | None:
        """The cache of a call that is a decoding step; None for any other."""
        if (cache := stepped_cache(arguments, self.model.config)) is not None:
            if (reason := self._why_not_now()) is None:
                return cache
            warnings.warn(f"a decoding step inside longspan.graphed was not recorded: {reason}", stacklevel=3)
        self.steps.others_ran()
        return None

    def _why_not_now(self) -> str | None:
        """Why a step has to be called, since a recording would leave out what was turned on; None if nothing was."""
        attachment, model = self.attachment, self.model
        if attachment_of(model) is not attachment or model.training:
            return "the model was restored, extended again or set to training mode inside the block"
        if attachment.observer is not None or attachment.attender.observer is not None:
            return "a recording is active (longspan.record)"
        if attachment.thread.run is not None:
            return "the weights of attention are added up (passages)"
        if torch.is_grad_enabled():
            return "gradients are on; call it under torch.no_grad()"
        return "autocast is on" if torch.is_autocast_enabled(model.device.type) else None

    def _step(self, cache: LongspanCache, arguments: dict[str, Any]) -> Any:
        """One step, from the recording; None if the model has to be called."""
        ids, mask, past = arguments["input_ids"], arguments.get("attention_mask"), cache.stores[0].length
        self.attachment.check(cache)
        cache.refuse_uneven()
        padding = left_padding(mask, ids.shape[0], past + 1)
        cache.accept(padding, mask is not None, past)
        if arguments.get("position_ids") is not None:
            cache.numbering = numbering(arguments["position_ids"], mask, padding, past, 1, cache.numbering)
        self.attachment.stood_in()
        return self.steps(cache, ids)


class _CudaGraphs:
    """The decoding steps of a model on a GPU, a recording of each cache."""

    def __init__(self, model: PreTrainedModel, attachment: Attachment, room: int) -> None:
        self.model, self.attachment, self.room, self.forward = model, attachment, room, model.forward
        self._recordings: WeakKeyDictionary[LongspanCache, _GraphRecording] = WeakKeyDictionary()

    def others_ran(self) -> None:
        """Calls were made that are no decoding steps, and may have moved a cache."""
        for recording in self._recordings.values():
            recording.others_ran = True

    def __call__(self, cache: LongspanCache, ids: Tensor) -> Any:
        """The output of the model for one token in each row, ``ids`` ``[B, 1]``; None if the model has to be called."""
        assert cache.padding is not None
        past = cache.stores[0].length
        recording = self._fitting(cache, past, cache.padding)
        if recording is None:
            self._reserve(cache, past)
        if (kept_at := _kept_at(cache)) is None:
            if recording is not None:
                recording.others_ran = True  # its summary may move the index
            return None
        recording = recording or self._record(cache, past, cache.padding, ids, kept_at)
        recording.ids.copy_(ids)
        recording.step.move(past, kept_at)
        recording.replay()
        for store in cache.stores:
            store.commit_one()
        leaves = [cache if x is _CACHE else x.clone() if isinstance(x, Tensor) else x for x in recording.out]
        return tree_unflatten(leaves, recording.form)

    def _fitting(self, cache: LongspanCache, past: int, padding: tuple[int, ...]) -> _GraphRecording | None:
        """The cache's recording, if it still holds; it is given up if not."""
        recording = self._recordings.get(cache)
        if recording is None:
            return None
        if recording.padding == padding and recording.step.holds(past):
            if recording.memory == _memory(cache):
                recording.others_ran = False
                return recording
            if not recording.others_ran:
                raise CacheError(
                    "the cache was reallocated between two decoding steps, as by beam search, so every step would be "
                    "recorded; run this without longspan.graphed"
                )
        del self._recordings[cache]
        return None

    def _reserve(self, cache: LongspanCache, past: int) -> None:
        for store in cache.stores:
            store.reserve(past + self.room)
        for store in cache.stores:
            if store.index is not None:
                store.index.reserve(_capacity(cache))

    def _record(
        self, cache: LongspanCache, past: int, padding: tuple[int, ...], ids: Tensor, kept_at: list[int]
    ) -> _GraphRecording:
        layers = len(cache.layers)
        step = RecordedStep(self.attachment.attender.tables, padding, _capacity(cache), self.model.device, layers, past)
        with torch.inference_mode(False), torch.no_grad():
            static_ids = ids.clone()
        step.move(past, kept_at)
        try:
            with self.attachment.attended_by(step):
                out, replay = record(
                    lambda: self.forward(input_ids=static_ids, use_cache=True, **{CACHE_ARGUMENT: cache}),
                    self.model.device,
                )
        except LongspanError:
            raise
        except Exception as error:
            # A capture that fails ends by an error of its own, after that of what failed in it.
            raise _unrecorded(f"{type(self.model).__name__}: {error.__context__ or error}") from error
        leaves, form = tree_flatten(out)
        leaves = [_CACHE if x is cache else x for x in leaves]  # which would keep itself alive
        recording = self._recordings[cache] = _GraphRecording(
            _memory(cache), padding, step, static_ids, leaves, form, replay
        )
        return recording


def _capacity(cache: LongspanCache) -> int:
    return min(store.capacity for store in cache.stores)


def _kept_at(cache: LongspanCache) -> list[int] | None:
    """For each layer where its index keeps the next token's inputs; None if an index has to do more than write them."""
    places = []
    for layer in cache.layers:
        index = layer.store.index if isinstance(layer, StoreLayer) else None
        slot = Slot(0) if index is None else index.reserve_one()
        if slot is None or slot.completes:
            return None
        places.append(slot.kept_at)
    return places


def _memory(cache: LongspanCache) -> list[tuple[int, ...]]:
    tensors = [x for store in cache.stores for x in store.allocated]
    tensors += [x for store in cache.stores if store.index is not None for x in store.index.memory]
    # An allocator gives what was freed again, for a tensor of another shape too.
    return [(x.data_ptr(), *x.shape, *x.stride()) for x in tensors]
