"""Which kernels a model's attention runs on, for the report."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from longspan.attend import Attender, unrecordable_reason
from longspan.errors import LongspanError
from longspan.hf.layer import Layer
from longspan.kernels import cpu
from longspan.kernels.dispatch import Impl
from longspan.kernels.gpu import tiles


def describe_kernels(impl: Impl, device: torch.device) -> tuple[str, str | None]:
    """What runs, and what a user should know of it, if anything. May compile the kernels in C, which takes seconds.

    Raises:
        LongspanError: the kernels that are asked for cannot run here.
    """
    if (
        impl == "triton"
        and (reason := tiles.unsupported_reason(torch.empty(0, dtype=torch.float32, device=device))) is not None
    ):
        raise LongspanError(f"impl='triton' cannot run: {reason}; leave it out")
    if impl not in ("auto", "compiled"):
        return impl, None
    if device.type != "cpu":
        if impl == "compiled":
            raise LongspanError(
                f"impl='compiled' is for models on a CPU, and this one is on {device.type}; leave it out"
            )
        return "auto (Triton where it can run, else torch's operations)", None
    reason = cpu.unavailable_reason()
    if reason is None:
        where = "compiled" if impl == "compiled" else "auto (compiled where they can run, else torch's operations)"
        return f"{where}; by {cpu.compiler_version()}", None
    if impl == "compiled":
        raise LongspanError(f"impl='compiled' cannot run: {reason}; leave it out for torch's operations")
    return "auto (torch's operations)", f"it runs on torch's operations, decoding several times slower: {reason}"


def describe_decoding(attender: Attender, layers: Sequence[Layer], dtype: torch.dtype, device: torch.device) -> str:
    """How the attached layers take in a token that comes alone, for the report; empty where none is attached."""
    reasons: dict[str | None, list[int]] = {}
    for layer in layers:
        if layer.rope is not None:
            reason = attender.decode_reason(layer.rope, layer.index, dtype, device)
            reasons.setdefault(reason, []).append(layer.index)
    if device.type == "cuda" and reasons:
        unrecordable = unrecordable_reason(attender.method)
        if unrecordable is None and any(layer.rope is None for layer in layers):
            unrecordable = "layers that stay stock have a cache of their own"
        if unrecordable is None and attender.impl not in ("auto", "triton"):
            unrecordable = f"it runs on Triton's kernels, not on impl={attender.impl!r}"
        graph = "longspan.graphed can record it" if unrecordable is None else f"no CUDA graph: {unrecordable}"
        return f"each part of a token its own kernel; {graph}"
    ways = []
    for reason, numbers in reasons.items():
        where = "" if len(reasons) == 1 else f"layers {', '.join(map(str, numbers))}: "
        ways.append(
            where
            + (
                "compiled, one call a layer while nothing grows"
                if reason is None
                else f"each part its own call: {reason}"
            )
        )
    return "; ".join(ways)
