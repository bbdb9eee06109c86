"""Which kernels a model's attention runs on, for the report."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from longspan.attend import Attender, unrecordable_reason
from longspan.errors import LongspanError
from longspan.hf.layer import Layer
from longspan.hf.parallel import split_reason
from longspan.hf.placement import devices_of
from longspan.kernels import cpu
from longspan.kernels.dispatch import Impl
from longspan.kernels.gpu import tiles
from longspan.store import KVTier


def describe_kernels(impl: Impl, device: torch.device) -> tuple[str, str | None]:
    """The implementation that runs, and a note for the user or None. May compile the C kernels, which takes seconds.

    Raises:
        LongspanError: the kernels of a named ``impl`` cannot run here.
    """
    if impl == "triton":
        reason = tiles.unsupported_reason(torch.empty(0, dtype=torch.float32, device=device))
        if reason is not None:
            raise LongspanError(f"impl='triton' cannot run: {reason}; leave impl out")
    if impl not in ("auto", "compiled"):
        return impl, None
    if device.type != "cpu":
        if impl == "compiled":
            raise LongspanError(
                f"impl='compiled' is for models on a CPU; this model is on {device.type}: leave impl out"
            )
        return "auto (Triton; torch operations where it does not apply)", None
    reason = cpu.unavailable_reason()
    if reason is None:
        where = "compiled" if impl == "compiled" else "auto (C kernels; torch operations where they do not apply)"
        return f"{where}; by {cpu.compiler_version()}", None
    if impl == "compiled":
        raise LongspanError(f"impl='compiled' cannot run: {reason}; leave impl out for torch operations")
    return "auto (torch operations)", f"no C kernels, so decoding is several times slower: {reason}"


def unrecordable(model: PreTrainedModel, attender: Attender, layers: Sequence[Layer], kv_tier: KVTier) -> str | None:
    """The reason against a CUDA graph of this model's decoding, whatever the device; None if there is none."""
    if (reason := unrecordable_reason(attender.method)) is not None:
        return reason
    stock = next((layer for layer in layers if layer.rope is None), None)
    if stock is not None:
        return f"{stock.name} stayed stock ({stock.reason}), and its cache allocates new tensors"
    if kv_tier != "device":
        return f"kv_tier={kv_tier!r} copies keys to the device at every step"
    if attender.impl not in ("auto", "triton"):
        return f"a graph needs the Triton kernels, and impl={attender.impl!r} is set"
    devices = {x.device for x in model.parameters()}
    if (reason := split_reason(model)) is not None:
        return f"{reason}, which exchange tensors within a step"
    if len(devices) > 1:
        return f"the model is on several devices: {', '.join(sorted(map(str, devices)))}"
    return None


def describe_decoding(model: PreTrainedModel, attender: Attender, layers: Sequence[Layer], kv_tier: KVTier) -> str:
    """How the attached layers compute a single token, for the report; empty if no layer is attached."""
    reasons: dict[str | None, list[int]] = {}
    for layer in layers:
        if layer.rope is not None:
            device = next(iter(devices_of(layer.module)), model.device)  # of several, each layer has its own
            reason = attender.decode_reason(layer.rope, layer.index, model.dtype, device)
            reasons.setdefault(reason, []).append(layer.index)
    if model.device.type == "cuda" and reasons:
        reason = unrecordable(model, attender, layers, kv_tier)
        graph = "longspan.graphed can record it" if reason is None else f"no CUDA graph: {reason}"
        return f"separate kernels per token; {graph}"
    ways = []
    for reason, numbers in reasons.items():
        where = "" if len(reasons) == 1 else f"layers {', '.join(map(str, numbers))}: "
        compiled = "compiled: one C call per layer"
        ways.append(where + (compiled if reason is None else f"separate kernels per layer: {reason}"))
    return "; ".join(ways)
