"""The contract of gathered attention, dense and in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels.gathered.contract import Gathered, PerQueryChunk, PerRow
from longspan.kernels.softmax import bounded


def run(job: PerRow | PerQueryChunk) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` in fp64."""
    return by_row(job) if isinstance(job, PerRow) else by_query_chunk(job)


def by_row(job: PerRow) -> tuple[Tensor, Tensor]:
    """``run`` for queries with units of their own: ``[B, H, T, Dv]`` and ``[B, H, T]``; softmax over all units."""
    keys, v, units = (_each_head(job, x) for x in (job.keys.double(), job.v.double(), job.units))
    at = job.positions if job.positions.dim() == 2 else _each_head(job, job.positions)
    j = torch.arange(v.shape[2], device=v.device)
    parts = []
    for n in range(units.shape[-1]):
        cos, sin = (x[at[..., n]] for x in job.table)
        scores = bounded(job.rope.rotate_q(job.q.double(), cos, sin) @ keys.mT, job.scale, job.softcap)
        parts.append(scores.masked_fill(j // job.size != units[..., n, None], float("-inf")))
    scores = torch.cat(parts, dim=-1)
    out = scores.softmax(dim=-1) @ torch.cat([v] * len(parts), dim=2)
    return out.to(job.q.dtype), scores.logsumexp(dim=-1)


def by_query_chunk(job: PerQueryChunk) -> tuple[Tensor, Tensor]:
    """``run`` for queries with the same tokens: ``[B, H, T, Dv]`` and ``[B, H, T]``; softmax over all tokens."""
    tokens = _each_head(job, job.tokens)[..., None]
    keys, v = (torch.take_along_dim(_each_head(job, x.double()), tokens, dim=2) for x in (job.keys, job.v))
    if job.key_cos_sin is not None:
        keys = job.rope.rotate_k(keys, *job.key_cos_sin)
    products = torch.stack([job.rope.rotate_q(job.q.double(), *cos_sin) @ keys.mT for cos_sin in job.cos_sin])
    scores = bounded(products, job.scale, job.softcap)
    if job.ends is None:
        scores = scores[0]
    else:
        n = torch.arange(tokens.shape[2], device=scores.device)
        run = (n >= _each_head(job, job.ends)[..., None]).sum(dim=2)  # [B, H, M]
        own = run.clamp(max=len(job.cos_sin) - 1)[None, :, :, None, :]
        scores = torch.take_along_dim(scores, own, dim=0)[0]
        scores = scores.masked_fill((run == len(job.cos_sin))[:, :, None], float("-inf"))
    return (scores.softmax(dim=-1) @ v).to(job.q.dtype), scores.logsumexp(dim=-1)


def _each_head(job: Gathered, x: Tensor) -> Tensor:
    return x.repeat_interleave(job.q.shape[1] // x.shape[1], dim=1)
