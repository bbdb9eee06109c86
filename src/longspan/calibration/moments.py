"""Second moments of a layer's queries and keys, accumulated over calls."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.calibration.projection import flat_keys, flat_queries
from longspan.errors import CalibrationError


class Moments:
    """``C_q = E[q qᵀ]`` and ``C_k = E[(k - E k)(k - E k)ᵀ]`` of one layer, in fp64.

    Keys are centred: ``q · E[k]`` is equal for all keys and does not change their order by score. The sums are about
    the mean of the first call, so that a large mean costs no precision. Memory: ``16 · (Hkv · D)²`` bytes.

    Args:
        kv_heads: ``Hkv``.
        key_dim: ``D``.
        device: the device of the sums; it must support fp64.
    """

    def __init__(self, kv_heads: int, key_dim: int, device: torch.device | str = "cpu") -> None:
        channels = kv_heads * key_dim
        self.kv_heads, self.key_dim, self.tokens = kv_heads, key_dim, 0
        self._qq, self._kk = (torch.zeros(channels, channels, dtype=torch.float64, device=device) for _ in "qk")
        self._k = torch.zeros(channels, dtype=torch.float64, device=device)
        self._origin: Tensor | None = None

    def add(self, q: Tensor, k: Tensor) -> None:
        """Add unrotated queries ``[B, H, T, D]`` and keys ``[B, Hkv, T, D]``, of any floating dtype.

        Raises:
            ValueError: the heads or channels of the keys differ from ``kv_heads`` and ``key_dim``.
        """
        if k.shape[1] != self.kv_heads or k.shape[-1] != self.key_dim:
            raise CalibrationError(
                f"keys must have {self.kv_heads} heads of {self.key_dim} channels, not {k.shape[1]} heads of "
                f"{k.shape[-1]}"
            )
        if k.shape[0] * k.shape[2] == 0:
            return
        queries = flat_queries(q.to(self._k.device, torch.float64), self.kv_heads).flatten(0, 1)
        keys = flat_keys(k.to(self._k.device, torch.float64)).flatten(0, 1)
        if self._origin is None:
            self._origin = keys.mean(0)
        keys = keys - self._origin
        self._qq.addmm_(queries.T, queries)
        self._kk.addmm_(keys.T, keys)
        self._k += keys.sum(0)
        self.tokens += keys.shape[0]

    @property
    def keys_differ(self) -> bool:
        """Whether any two keys differ by more than rounding."""
        if self._origin is None:
            return False
        return float(self._kk.trace()) > 1e-12 * self.tokens * float(self._origin.square().sum())

    def layer(self) -> tuple[Tensor, Tensor]:
        """``C_q, C_k`` of the whole layer, ``[1, Hkv * D, Hkv * D]`` each, in fp64.

        Raises:
            ValueError: no tokens were added.
        """
        if self.tokens == 0:
            raise CalibrationError("the moments have no tokens: add queries and keys first")
        mean = self._k / self.tokens
        return (self._qq / self.tokens)[None], (self._kk / self.tokens - torch.outer(mean, mean))[None]

    def heads(self) -> tuple[Tensor, Tensor]:
        """``C_q, C_k`` of each key head, ``[Hkv, D, D]`` each, in fp64: the diagonal blocks of ``layer()``."""
        c_q, c_k = self.layer()
        return self._blocks(c_q[0]), self._blocks(c_k[0])

    def _blocks(self, moments: Tensor) -> Tensor:
        size = self.key_dim
        return torch.stack([moments[n : n + size, n : n + size] for n in range(0, moments.shape[0], size)])
