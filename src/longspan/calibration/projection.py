"""One layer's pair of linear maps, and the two forms of queries and keys that they are applied to.

Shapes: ``B`` batch, ``H`` query heads in ``Hkv`` groups of equal size, ``T`` tokens, ``D`` key size of a head, ``d'``
reduced size of a layer, ``d''`` reduced size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Projection:
    """The maps ``θ_q`` and ``θ_k`` of one layer (ESA, An Efficient Selective Attention Approach, 2025, Eq 7).

    Both act on *unrotated* queries and keys. For a whole layer the products of all heads are summed,
    ``Σ_h q_h · k_h ≈ θ_q(q) · θ_k(k)``; per key head those of the query heads in its group are.

    Attributes:
        theta_q, theta_k: fp32, ``[d', Hkv * D]`` each for a whole layer, ``[Hkv, d'', D]`` per key head. The channels
            of a layer are head-major: channel ``c`` of key head ``h`` is ``h * D + c``.

    Raises:
        ValueError: the two differ in shape, or are no fp32 matrices of finite numbers.
    """

    theta_q: Tensor
    theta_k: Tensor

    def __post_init__(self) -> None:
        for name, x in (("theta_q", self.theta_q), ("theta_k", self.theta_k)):
            if x.dtype != torch.float32 or x.dim() not in (2, 3) or 0 in x.shape:
                raise ValueError(
                    f"{name} is a float32 tensor [d', channels] or [heads, d'', channels], "
                    f"not {x.dtype} {list(x.shape)}"
                )
            if not bool(x.isfinite().all()):
                raise ValueError(f"{name} holds numbers that are not finite")
        if self.theta_q.shape != self.theta_k.shape:
            raise ValueError(
                f"theta_q {list(self.theta_q.shape)} and theta_k {list(self.theta_k.shape)} differ in shape"
            )

    @property
    def per_head(self) -> bool:
        """Whether it reduces each key head by itself."""
        return self.theta_k.dim() == 3

    @property
    def size(self) -> int:
        """``d'`` or ``d''``: numbers kept of a key."""
        return self.theta_k.shape[-2]

    def to(self, device: torch.device | str) -> Projection:
        """The same maps on another device."""
        return Projection(self.theta_q.to(device), self.theta_k.to(device))

    def reduce_queries(self, q: Tensor) -> Tensor:
        """Unrotated queries ``[B, H, T, D]`` → ``[B, T, d']``, or ``[B, Hkv, T, d'']`` per key head, in fp32."""
        if self.per_head:
            heads, _, channels = self.theta_q.shape
            return group_sum(q.float(), heads, channels) @ self.theta_q.transpose(-1, -2)
        return flat_queries(q.float(), self.theta_q.shape[-1] // q.shape[-1]) @ self.theta_q.T

    def reduce_keys(self, k: Tensor) -> Tensor:
        """Unrotated keys ``[B, Hkv, T, D]`` → ``[B, T, d']``, or ``[B, Hkv, T, d'']`` per key head, in fp32."""
        if self.per_head:
            return k.float() @ self.theta_k.transpose(-1, -2)
        return flat_keys(k.float()) @ self.theta_k.T


def group_sum(q: Tensor, kv_heads: int, key_dim: int | None = None) -> Tensor:
    """Queries ``[B, H, T, D]`` summed over the query heads of each key head, ``[B, Hkv, T, D]``.

    Since ``Σ_h q_h · k = (Σ_h q_h) · k``, this loses nothing of a score that is summed over them.
    """
    batch, heads, tokens, channels = q.shape
    if kv_heads < 1 or heads % kv_heads or (key_dim is not None and channels != key_dim):
        raise ValueError(
            f"{heads} query heads of {channels} channels do not fall into groups for {kv_heads} key heads"
            + ("" if key_dim is None else f" of {key_dim}")
        )
    return q.reshape(batch, kv_heads, heads // kv_heads, tokens, channels).sum(2)


def flat_queries(q: Tensor, kv_heads: int) -> Tensor:
    """Queries ``[B, H, T, D]`` summed per group, channels of all key heads side by side: ``[B, T, Hkv * D]``."""
    return group_sum(q, kv_heads).transpose(1, 2).flatten(2)


def flat_keys(k: Tensor) -> Tensor:
    """Keys ``[B, Hkv, T, D]`` with the channels of all heads side by side: ``[B, T, Hkv * D]``."""
    return k.transpose(1, 2).flatten(2)
