"""Scores by which keys are chosen, of which only what decides is kept.

``worth`` (Wang et al., 2025, Eq 4) of a candidate key is ``F(m) = max_c (f(m; c) - max_m' f(m'; c))``: how near it
comes, for any query ``c``, to the best of all candidates. ``representations`` are those of full chunks (Lu et al.,
2024, Eqs 1 and 2). Neither holds scores of queries against keys in memory where the Triton kernels run.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

from torch import Tensor

from longspan import dtypes
from longspan.kernels.scores import compiled, torch_ops, triton
from longspan.rope import Rope

Impl = Literal["auto", "triton", "compiled", "torch"]
_FEW = 4  # queries up to which a product only reads keys

__all__ = ["Impl", "products", "representations", "worth"]


def products(q: Tensor, keys: Tensor, *, impl: Literal["auto", "compiled", "torch"] = "auto") -> Tensor:
    """``q · k`` of every query ``[B, H, T, D]`` and key ``[B, H, M, D]`` or ``[B, 1, M, D]``, ``[B, H, T, M]``.

    Args:
        q, keys: in one dtype, or the queries in the keys' ``accumulator``.
        impl: ``"auto"`` takes the compiled kernel for few queries on a CPU where it can run.

    Returns:
        Them in fp32 (fp64 for fp64).

    Raises:
        ValueError: the named implementation cannot run here.
    """
    if impl == "compiled" or impl == "auto" and q.shape[2] <= _FEW:
        reason = compiled.why_not(q, keys)
        if reason is None:
            return compiled.products(q, keys if keys.shape[1] == q.shape[1] else keys.expand(-1, q.shape[1], -1, -1))
        if impl == "compiled":
            raise ValueError(f"compiled cannot run here: {reason}; use impl='torch'")
    return dtypes.products(q, keys if q.dtype == keys.dtype else dtypes.widen(keys))


def worth(q: Tensor, keys: Tensor, *, together: int = 1, impl: Impl = "auto") -> Tensor:
    """``F(m)`` of every key, with ``f = Σ q · k`` over the parts of a query, and its maximum over those ``together``.

    Args:
        q: ``[B, A, T, C, D]``, queries in ``C`` parts.
        keys: ``[B, Hkv, M, D]``: part ``c`` meets key head ``c`` where there is more than one part; else the heads of
            queries are spread over the key heads in order.
        together: ``P``, how many consecutive heads of ``q`` choose as one, the largest of their scores deciding.
        impl: ``"auto"`` takes the Triton kernel for CUDA tensors where it can run, the compiled one for many queries on
            a CPU; else ``products`` as it chooses.

    Returns:
        ``[B, A / P, M]`` in fp32 (fp64 for fp64).

    Raises:
        ValueError: the named implementation cannot run here.
    """
    if _triton(impl, q, keys):
        return triton.worth(q, keys, together)
    if impl == "compiled" or impl == "auto" and q.shape[2] > _FEW:
        reason = compiled.why_no_worth(q, keys, together)
        if reason is None:
            return compiled.worth(q, keys, together)
        if impl == "compiled":
            raise ValueError(f"compiled cannot run here: {reason}; use impl='torch'")
    return torch_ops.worth(q, keys, together, partial(products, impl="torch" if impl == "torch" else "auto"))


def representations(
    q: Tensor, k: Tensor, v: Tensor, rope: Rope, scale: float, *, order: Tensor | None = None, impl: Impl = "auto"
) -> Tensor:
    """Of every chunk and head ``softmax(q^c Kᵀ · scale) K`` (Eq 2), ``q^c = mean(softmax(Q Kᵀ · scale) V)`` (Eq 1).

    Args:
        q, k, v: ``[H, n, l, D]``, ``[Hkv, n, l, D]`` of ``n`` chunks, unrotated; they are turned to their place in it.
        order: ``[D]`` int64, of a value's channels those that meet the keys' in Eq 2; None for the same order.
        impl: as for ``worth``.

    Returns:
        ``[H, n, D]`` in q's dtype or its accumulator's.

    Raises:
        ValueError: the named implementation cannot run here.
    """
    if _triton(impl, q, k, v, rope=rope):
        return triton.representations(q, k, v, rope, scale, order)
    if impl in ("auto", "compiled"):
        reason = compiled.why_no_chunks(q, k, v, rope)
        if reason is None:
            return compiled.representations(q, k, v, rope, scale, order)
        if impl == "compiled":
            raise ValueError(f"compiled cannot run here: {reason}; use impl='torch'")
    return torch_ops.representations(q, k, v, rope, scale, order)


def _triton(impl: Impl, q: Tensor, *others: Tensor, rope: Rope | None = None) -> bool:
    """Whether the Triton kernels run it."""
    if impl not in get_args(Impl):
        raise ValueError(f"impl is one of {', '.join(get_args(Impl))}, not {impl!r}")
    if impl in ("torch", "compiled") or impl == "auto" and q.device.type != "cuda":
        return False
    reason = triton.why_not(q, *others, rope=rope)
    if reason is not None and impl == "triton":
        raise ValueError(f"triton cannot run here: {reason}; use impl='torch'")
    return reason is None
