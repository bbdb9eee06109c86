"""Attention to gathered keys: units (chunks, blocks or single tokens) that queries chose.

Contract. The score of a query and a key of its units is ``scale · rotate(q, position) · key``; ``softcap`` bounds it;
one softmax runs over the keys of all units; the output is the weighted sum of their values. The log-sum-exp goes with
it, so that the result can be merged with that of other keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from longspan.kernels.dispatch import Impl, flash_unsupported_reason, resolve
from longspan.kernels.gathered import compiled, reference, torch_ops, triton
from longspan.kernels.gathered.contract import Part, PerQueryChunk, PerRow
from longspan.kernels.gathered.offloaded import brought, brought_chunk
from longspan.kernels.gpu import launch, tiles
from longspan.kernels.softmax import merge

__all__ = ["Impl", "Part", "PerQueryChunk", "PerRow", "gather_into", "gathered"]


def gathered(job: PerRow | PerQueryChunk, impl: Impl = "auto") -> Iterator[Part]:
    """Run a job, as many rows at a time as the implementation does best, in order.

    Args:
        impl: see ``longspan.kernels.dispatch``.

    Yields:
        Which rows, their output ``[B, H, n, Dv]`` in q's dtype, and their log-sum-exp ``[B, H, n]`` in fp32 (fp64 for
        fp64); good until the next part is asked for.

    Raises:
        ValueError: the named implementation cannot run here.
    """
    if job.keys.device != job.q.device:
        if isinstance(job, PerRow):
            return _of_each(brought(job), impl)
        return _of_each(((rows, brought_chunk(chunk)) for rows, chunk in job.chunks()), impl)
    name = _implementation(job, impl)
    if name in ("flash_cpu", "torch"):
        return torch_ops.run(job, flash=name == "flash_cpu")
    if name != "reference" or isinstance(job, PerRow):
        run = {"compiled": compiled.run, "triton": triton.run, "reference": reference.run}[name]
        return iter([(slice(0, job.q.shape[2]), *run(job))])
    return ((rows, *reference.run(chunk)) for rows, chunk in job.chunks())


def gather_into(out: Tensor, lse: Tensor, job: PerRow | PerQueryChunk, impl: Impl = "auto") -> None:
    """Run a job and merge it into ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, of other keys, in place."""
    plain = out.dtype == job.q.dtype and out.stride(-1) == 1 and lse.dtype == torch.float32
    here = job.keys.device == job.q.device  # a named implementation can only run once the keys are
    if here and plain and _implementation(job, impl) == "compiled":
        compiled.run_into(out, lse, job)
        return
    on_a_gpu = plain and impl in ("auto", "triton") and tiles.unsupported_reason(out) is None
    into = launch.merge_into if on_a_gpu and (out.device.type == "cuda" or impl == "triton") else merge
    for some, other, other_lse in gathered(job, impl):
        into(out[:, :, some], lse[:, :, some], other, other_lse)


def _of_each(parts: Iterable[tuple[slice, PerRow | PerQueryChunk]], impl: Impl) -> Iterator[Part]:
    for rows, part in parts:
        for some, out, lse in gathered(part, impl):
            yield slice(rows.start + some.start, rows.start + some.stop), out, lse


def _implementation(job: PerRow | PerQueryChunk, impl: Impl) -> Impl:
    return resolve(
        impl,
        job.q.device,
        {
            "triton": lambda: triton.unsupported_reason(job),
            "compiled": lambda: compiled.unsupported_reason(job),
            "flash_cpu": lambda: flash_unsupported_reason(job.q, job.softcap),
        },
    )
