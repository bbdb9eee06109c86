"""The two linear maps of one layer, and the two layouts of queries and keys that the maps take.

``longspan.bands`` has the legend of shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import CalibrationError


@dataclass(frozen=True, eq=False)
class Projection:
    """The maps ``θ_q`` and ``θ_k`` of one layer (ESA, An Efficient Selective Attention Approach, 2025, Eq 7).

    Both apply to *unrotated* queries and keys. For a whole layer they approximate the sum of the products of all
    heads, ``Σ_h q_h · k_h ≈ θ_q(q) · θ_k(k)``; per key head, the sum over the query heads of its group.

    Attributes:
        theta_q, theta_k: fp32, ``[d', Hkv * D]`` each for a whole layer, ``[Hkv, d'', D]`` per key head. The channels
            of a layer are head-major: channel ``c`` of key head ``h`` is ``h * D + c``.

    Raises:
        ValueError: the shapes differ, or a map is not fp32, has a wrong number of dimensions or is not finite.
    """

    theta_q: Tensor
    theta_k: Tensor

    def __post_init__(self) -> None:
        for name, x in (("theta_q", self.theta_q), ("theta_k", self.theta_k)):
            if x.dtype != torch.float32 or x.dim() not in (2, 3) or 0 in x.shape:
                raise CalibrationError(
                    f"{name} must be a float32 tensor [d', channels] or [heads, d'', channels], "
                    f"not {x.dtype} {list(x.shape)}"
                )
            if not bool(x.isfinite().all()):
                raise CalibrationError(f"{name} contains numbers that are not finite")
        if self.theta_q.shape != self.theta_k.shape:
            raise CalibrationError(
                f"theta_q {list(self.theta_q.shape)} and theta_k {list(self.theta_k.shape)} differ in shape"
            )

    @property
    def per_head(self) -> bool:
        """Whether the maps are per key head."""
        return self.theta_k.dim() == 3

    @property
    def size(self) -> int:
        """``d'``, or ``d''`` per key head: the size of a reduced key."""
        return self.theta_k.shape[-2]

    def to(self, device: torch.device | str) -> Projection:
        """A copy on ``device``."""
        return Projection(self.theta_q.to(device), self.theta_k.to(device))

    def reduce_queries(self, q: Tensor) -> Tensor:
        """``θ_q(q)``: unrotated queries ``[B, H, T, D]`` → ``[B, T, d']``, or ``[B, Hkv, T, d'']`` per head; fp32."""
        if self.per_head:
            heads, _, channels = self.theta_q.shape
            return group_sum(q.float(), heads, channels) @ self.theta_q.transpose(-1, -2)
        return flat_queries(q.float(), self.theta_q.shape[-1] // q.shape[-1]) @ self.theta_q.T

    def reduce_keys(self, k: Tensor) -> Tensor:
        """``θ_k(k)``: unrotated keys ``[B, Hkv, T, D]`` → ``[B, T, d']``, or ``[B, Hkv, T, d'']`` per head; fp32."""
        if self.per_head:
            return k.float() @ self.theta_k.transpose(-1, -2)
        return flat_keys(k.float()) @ self.theta_k.T


def group_sum(q: Tensor, kv_heads: int, key_dim: int | None = None) -> Tensor:
    """Sum queries ``[B, H, T, D]`` over the query heads of each key head: ``[B, Hkv, T, D]``.

    The sum keeps scores that are summed over these heads exact, since ``Σ_h q_h · k = (Σ_h q_h) · k``.

    Raises:
        ValueError: ``H`` is not a multiple of ``kv_heads``, or ``D`` is not ``key_dim``.
    """
    batch, heads, tokens, channels = q.shape
    if kv_heads < 1 or heads % kv_heads or (key_dim is not None and channels != key_dim):
        raise CalibrationError(
            f"{heads} query heads of {channels} channels do not form equal groups for {kv_heads} key heads"
            + ("" if key_dim is None else f" of {key_dim}")
        )
    return q.reshape(batch, kv_heads, heads // kv_heads, tokens, channels).sum(2)


def flat_queries(q: Tensor, kv_heads: int) -> Tensor:
    """Sum queries ``[B, H, T, D]`` per group and concatenate the channels of all key heads: ``[B, T, Hkv * D]``."""
    return group_sum(q, kv_heads).transpose(1, 2).flatten(2)


def flat_keys(k: Tensor) -> Tensor:
    """Concatenate the channels of all heads of keys ``[B, Hkv, T, D]``: ``[B, T, Hkv * D]``."""
    return k.transpose(1, 2).flatten(2)
