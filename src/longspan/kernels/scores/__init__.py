"""Scores by which keys are chosen.

Contracts. ``products`` are plain ``q · k``. ``token_scores`` (Wang et al., 2025, Eq 4) of a candidate key is
``F(m) = max_c (f(m; c) - max_m' f(m'; c))``: how near it comes, for any query ``c``, to the best of all candidates.
``representations`` summarise full chunks (Lu et al., 2024, Eqs 1 and 2). The Triton kernels of the last two keep no
scores of queries against keys in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import backends
from longspan.kernels.dispatch import Impl, Implementation, Kernel
from longspan.kernels.scores import compiled, reference, torch_ops, triton
from longspan.kernels.scores.contract import QueryChunks
from longspan.rope import Rope

_MEMORY_BOUND = 4  # query rows up to which the time of a product is that of reading its keys

relative_scores = torch_ops.relative_scores

__all__ = [
    "Impl",
    "QueryChunks",
    "dot_scores",
    "products",
    "recorded_token_scores",
    "relative_scores",
    "representations",
    "token_scores",
]


def products(q: Tensor, keys: Tensor, *, impl: Impl = "auto") -> Tensor:
    """``q · k`` of every query and key.

    Args:
        q: ``[B, H, T, D]``, in the keys' dtype or in its ``accumulator``.
        keys: ``[B, H, M, D]`` or ``[B, 1, M, D]``.
        impl: see ``longspan.kernels.dispatch``; ``"auto"`` takes the compiled kernel for few queries only.

    Returns:
        ``[B, H, T, M]`` in fp32 (fp64 for fp64).

    Raises:
        ValueError: the named implementation cannot run here.
    """
    scores: Tensor = PRODUCTS.choose(impl, q.device, q, keys).run(q, keys)
    return scores


def dot_scores(q: Tensor, keys: Tensor, *, impl: Impl = "auto") -> Tensor:
    """``f`` of each query for each key: ``Σ q · k`` over the parts of a query, by ``products``.

    Args:
        q: ``[B, S, T, C, D]``.
        keys: ``[B, Hkv, M, D]``: part ``c`` meets key head ``c`` if there is more than one part; else the queries
            of S are spread over the key heads in order.
        impl: see ``products``.

    Returns:
        ``[B, S, T, M]`` in fp32 (fp64 for fp64), on the queries' device; computed where the keys are.
    """
    q, device = q.to(keys.device), q.device
    if q.shape[3] == 1:
        by_key_head = q[:, :, :, 0].unflatten(1, (keys.shape[1], -1)).flatten(2, 3)
        return products(by_key_head, keys, impl=impl).view(*q.shape[:3], -1).to(device)
    total = products(q[:, :, :, 0], keys[:, :1], impl=impl)
    for part in range(1, q.shape[3]):
        total += products(q[:, :, :, part], keys[:, part : part + 1], impl=impl)
    return total.to(device)


def token_scores(q: Tensor, keys: Tensor, *, chunks: QueryChunks | None = None, impl: Impl = "auto") -> Tensor:
    """``F(m)`` of every key, with ``f = Σ q · k`` over the parts of a query.

    Args:
        q: ``[B, S, T, C, D]``, queries in ``C`` parts.
        keys: ``[B, Hkv, M, D]``, which meet the parts as in ``dot_scores``.
        chunks: of queries that score keys by themselves; None if all are one that meets every key.
        impl: see ``longspan.kernels.dispatch``; ``"auto"`` takes the compiled kernel for many queries only, and
            ``products`` as it chooses for few.

    Returns:
        ``[B, S, M]`` in fp32 (fp64 for fp64); of ``P`` chunks ``[B, S, P, M']`` with the largest of their stops ``M'``,
        of which a chunk has its own number of keys and anything behind.

    Raises:
        ValueError: the named implementation cannot run here.
    """
    scores: Tensor = TOKEN_SCORES.choose(impl, q.device, q, keys).run(q, keys, chunks, impl)
    return scores


def recorded_token_scores(q: Tensor, keys: Tensor, start: int, stop: Tensor) -> Tensor:
    """``token_scores`` of one query as a CUDA graph can record them, by the Triton kernel.

    Args:
        q: ``[B, S, 1, C, D]``.
        keys: ``[B, Hkv, M, D]``, of which those before ``start`` and from ``stop`` ``[1]`` (int64, on the device) on
            are not read.

    Returns:
        ``[B, S, M]`` in fp32, -inf of those.
    """
    return triton.token_scores(q, keys, start=start, stop=stop)


def representations(
    q: Tensor, k: Tensor, v: Tensor, rope: Rope, scale: float, *, order: Tensor | None = None, impl: Impl = "auto"
) -> Tensor:
    """Of every chunk and head ``softmax(q^c Kᵀ · scale) K`` (Eq 1), ``q^c = mean(softmax(Q Kᵀ · scale) V)`` (Eq 2).

    Args:
        q, k, v: ``[H, n, l, D]``, ``[Hkv, n, l, D]`` of ``n`` chunks of ``l`` tokens, unrotated; they are rotated to
            their place in the chunk.
        order: ``[D]`` int64, of a value's channels those that meet the keys' in Eq 1; None for the same order.
        impl: see ``longspan.kernels.dispatch``.

    Returns:
        ``[H, n, D]`` in q's dtype or its accumulator's.

    Raises:
        ValueError: the named implementation cannot run here.
    """
    found: Tensor = REPRESENTATIONS.choose(impl, q.device, q, k, v, rope).run(q, k, v, rope, scale, order)
    return found


def _few(q: Tensor, *_: object) -> bool:
    return q.shape[2] <= _MEMORY_BOUND


def _by_products(q: Tensor, keys: Tensor, chunks: QueryChunks | None, impl: Impl) -> Tensor:
    if chunks is not None:
        return _chunk_by_chunk(q, keys, chunks, impl)
    return relative_scores(dot_scores(q, keys, impl="auto" if impl == "auto" else "torch"))


def _by_definition(q: Tensor, keys: Tensor, chunks: QueryChunks | None, impl: Impl) -> Tensor:
    return reference.token_scores(q, keys) if chunks is None else _chunk_by_chunk(q, keys, chunks, impl)


def _chunk_by_chunk(q: Tensor, keys: Tensor, chunks: QueryChunks, impl: Impl) -> Tensor:
    most, parts = max(chunks.stops), []
    for first, last, stop in zip(chunks.edges[:-1], chunks.edges[1:], chunks.stops, strict=True):
        part = token_scores(q[:, :, first:last], keys[:, :, :stop], impl=impl)
        parts.append(torch.nn.functional.pad(part, (0, most - stop), value=float("-inf")))
    return torch.stack(parts, dim=2)


PRODUCTS = Kernel(
    Implementation(
        backends.COMPILED,
        lambda q, keys: compiled.products(q, keys.expand(-1, q.shape[1], -1, -1)),
        compiled.products_unsupported_reason,
        slower=lambda q, keys: not _few(q),
    ),
    Implementation(backends.TORCH, torch_ops.products),
    Implementation(backends.REFERENCE, reference.products),
)
TOKEN_SCORES = Kernel(
    Implementation(
        backends.TRITON, lambda q, keys, chunks, _: triton.token_scores(q, keys, chunks), triton.unsupported_reason
    ),
    Implementation(
        backends.COMPILED,
        lambda q, keys, chunks, _: compiled.token_scores(q, keys, chunks),
        compiled.token_scores_unsupported_reason,
        slower=_few,
    ),
    Implementation(backends.TORCH, _by_products),
    Implementation(backends.REFERENCE, _by_definition),
)
REPRESENTATIONS = Kernel(
    Implementation(
        backends.TRITON, triton.representations, lambda q, k, v, rope: triton.unsupported_reason(q, k, v, rope=rope)
    ),
    Implementation(backends.COMPILED, compiled.representations, compiled.representations_unsupported_reason),
    Implementation(backends.TORCH, torch_ops.representations),
    Implementation(backends.REFERENCE, reference.representations),
)
