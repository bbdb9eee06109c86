"""A probed model, and the kernels that its attention runs on, in words for its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from longspan.attend import Attender, unrecordable_reason
from longspan.bands import Index, Origin
from longspan.errors import LongspanError
from longspan.kernels.dispatch import BACKENDS, Impl, considered
from longspan.memory import KVTier
from longspan.model.layer import Layer
from longspan.model.parallel import split_reason
from longspan.model.placement import devices_of
from longspan.model.report import LayerReport


def describe(layer: Layer, rotations: int) -> LayerReport:
    """A layer whose cache holds so many rotations of each key."""
    rope = None
    if layer.rope is not None:
        rope = f"{layer.rope.rotated} of {layer.rope.head_dim} channels, {layer.rope.layout}"
        if layer.norms is not None:
            rope += ", normalised after the rotation"
    channels = layer.kv_heads * (rotations * layer.key_dim + layer.value_dim)
    size = channels * layer.itemsize if layer.sliding is None else 0
    return LayerReport(layer.index, layer.name, rope, layer.reason, size)


def layer_notes(layers: list[Layer], attender: Attender) -> Iterator[str]:
    """Notes for the user on the layers, and on the method on them."""
    wide = [layer.index for layer in layers if layer.sliding is not None and layer.sliding > attender.window]
    if wide:
        yield (
            f"the sliding windows of {len(wide)} stock layers are wider than the window of {attender.window} tokens, "
            "so they see positions beyond it"
        )
    if any(layer.norms for layer in layers) and not {Index(), Origin()} >= set(attender.tables.key_maps):
        yield (
            f"the model normalises after the rotation, so that scores depend on more than distances: "
            f"{attender.method.name} moves keys and queries together, and rows inside the window change too"
        )


def describe_kernels(impl: Impl, device: torch.device) -> tuple[str, str | None]:
    """The implementation that runs, and a note for the user or None. May compile the C kernels, which takes seconds.

    Raises:
        LongspanError: the kernels of a named ``impl`` cannot run here.
    """
    backend = considered(impl, device)[0]
    reason = backend.unsupported(torch.empty(0, dtype=torch.float32, device=device))
    if reason is not None and impl != "auto":
        raise LongspanError(f"impl={impl!r} cannot run: {reason}; leave impl out")
    if reason is not None:
        return "auto (torch operations)", f"no {backend.title}, so decoding is several times slower: {reason}"
    words = impl
    if impl == "auto":
        first = f"{backend.title}; " if backend.title else ""
        words = f"auto ({first}torch operations{' if they do not apply' if first else ''})"
    details = backend.details()
    return words if details is None else f"{words}; {details}", None


def unrecordable(model: PreTrainedModel, attender: Attender, layers: Sequence[Layer], kv_tier: KVTier) -> str | None:
    """The reason against a CUDA graph of this model's decoding, whatever the device; None if there is none."""
    if (reason := unrecordable_reason(attender.tables)) is not None:
        return reason
    if (reason := _unrecordable_model(model, layers)) is not None:
        return reason
    if kv_tier != "device":
        return f"kv_tier={kv_tier!r} copies keys to the device at every step"
    if attender.impl not in ("auto", "triton"):
        return f"a graph needs the Triton kernels, and impl={attender.impl!r} is set"
    return None


def _unrecordable_model(model: PreTrainedModel, layers: Sequence[Layer]) -> str | None:
    """The reason against a CUDA graph of this model's step, whatever its method; None if there is none."""
    stock = next((layer for layer in layers if layer.rope is None), None)
    if stock is not None:
        return f"{stock.name} stayed stock ({stock.reason}), and its cache allocates new tensors"
    devices = {x.device for x in model.parameters()}
    if (reason := split_reason(model)) is not None:
        return f"{reason}, which exchange tensors within a step"
    if len(devices) > 1:
        return f"the model is on several devices: {', '.join(sorted(map(str, devices)))}"
    return None


def describe_decoding(model: PreTrainedModel, attender: Attender, layers: Sequence[Layer], kv_tier: KVTier) -> str:
    """How the attached layers compute a single token, for the report.

    Raises:
        LongspanError: ``impl="compiled"``, and C has no single-token kernel for a layer.
    """
    reasons: dict[str | None, list[int]] = {}
    for layer in layers:
        if layer.rope is not None:
            device = next(iter(devices_of(layer.module)), model.device)  # of several, each layer has its own
            reason = attender.decode_reason(layer.rope, layer.index, layer.kept_as or model.dtype, device)
            reasons.setdefault(reason, []).append(layer.index)
    if model.device.type == "cuda" and reasons:
        reason = unrecordable(model, attender, layers, kv_tier)
        graph = "longspan.graphed can record it" if reason is None else f"no CUDA graph: {reason}"
        return f"separate kernels per token; {graph}"
    lacking = next(filter(None, reasons), None)
    if lacking is not None and attender.impl != "auto" and BACKENDS[attender.impl].in_c:
        raise LongspanError(
            f"impl={attender.impl!r} cannot compute a single token of layers "
            f"{', '.join(map(str, reasons[lacking]))} in one C call: {lacking}; leave impl out, and separate kernels "
            "compute it"
        )
    ways = []
    for reason, numbers in reasons.items():
        where = "" if len(reasons) == 1 else f"layers {', '.join(map(str, numbers))}: "
        compiled = "compiled: one C call per layer"
        ways.append(where + (compiled if reason is None else f"separate kernels per layer: {reason}"))
    return "; ".join(ways)
