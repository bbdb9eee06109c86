"""The stand-in for the rotation of a model's attention modules."""

from __future__ import annotations

from torch import Tensor, nn


class Unrotated(nn.Module):
    """Hands queries and keys on as they are: the attention rotates them, each query once for each band."""

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``query`` and ``key``, of any shape, as they are."""
        return query, key
