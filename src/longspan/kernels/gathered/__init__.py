"""Attention to gathered keys: units (chunks, blocks or single tokens) that queries chose.

Contract. The score of a query and a key of its units is ``scale · rotate(q, position) · key``; ``softcap`` bounds it;
one softmax runs over the keys of all units; the output is the weighted sum of their values. The log-sum-exp goes with
it, so that the result can be merged with that of other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from longspan.kernels import backends
from longspan.kernels.dispatch import Impl, Implementation, Kernel
from longspan.kernels.gathered import compiled, reference, torch_ops, triton
from longspan.kernels.gathered.contract import Part, PerQueryChunk, PerRow
from longspan.kernels.gathered.offloaded import brought, brought_chunk, here
from longspan.kernels.gpu import launch, tiles
from longspan.kernels.softmax import merge

__all__ = ["Impl", "Part", "PerQueryChunk", "PerRow", "gather_into", "gathered"]


def _at_once(run: Callable[[Any], tuple[Tensor, Tensor]]) -> Callable[[Any], Iterator[Part]]:
    """``run``, which computes all rows of a job, as ``gathered`` yields them."""
    return lambda job: iter([(slice(0, job.q.shape[2]), *run(job))])


def _by_definition(job: PerRow | PerQueryChunk) -> Iterator[Part]:
    jobs = [(slice(0, job.q.shape[2]), job)] if isinstance(job, PerRow) else job.chunks()
    return ((rows, *reference.run(part)) for rows, part in jobs)


GATHERED = Kernel(
    Implementation(backends.TRITON, _at_once(triton.run), triton.unsupported_reason),
    Implementation(backends.COMPILED, _at_once(compiled.run), compiled.unsupported_reason, run_into=compiled.run_into),
    Implementation(
        backends.FLASH_CPU,
        partial(torch_ops.run, flash=True),
        lambda job: backends.flash_unsupported_reason(job.q, softcap=job.softcap),
    ),
    Implementation(backends.TORCH, partial(torch_ops.run, flash=False)),
    Implementation(backends.REFERENCE, _by_definition),
)


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
    if not here(job):
        if isinstance(job, PerRow):
            return _of_each(brought(job), impl)
        return _of_each(((rows, brought_chunk(chunk)) for rows, chunk in job.chunks()), impl)
    parts: Iterator[Part] = GATHERED.choose(impl, job.q.device, job).run(job)
    return parts


def gather_into(out: Tensor, lse: Tensor, job: PerRow | PerQueryChunk, impl: Impl = "auto") -> None:
    """Run a job and merge it into ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, of other keys, in place."""
    plain = out.dtype == job.q.dtype and out.stride(-1) == 1 and lse.dtype == torch.float32
    # A named implementation can only run once the keys are here.
    if here(job) and plain and (run_into := GATHERED.choose(impl, job.q.device, job).run_into) is not None:
        run_into(out, lse, job)
        return
    on_a_gpu = plain and impl in ("auto", "triton") and tiles.unsupported_reason(out) is None
    into = launch.merge_into if on_a_gpu and (out.device.type == "cuda" or impl == "triton") else merge
    for some, other, other_lse in gathered(job, impl):
        into(out[:, :, some], lse[:, :, some], other, other_lse)


def _of_each(parts: Iterable[tuple[slice, PerRow | PerQueryChunk]], impl: Impl) -> Iterator[Part]:
    for rows, part in parts:
        for some, out, lse in gathered(part, impl):
            yield slice(rows.start + some.start, rows.start + some.stop), out, lse
