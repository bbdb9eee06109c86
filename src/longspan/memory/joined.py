"""Stores of several texts in one batch."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.memory.kv import KVStore


class JoinedStores:
    """One layer's stores of several texts, one row each, that take in their next tokens together.

    Args:
        stores: in the order of the batch.
    """

    def __init__(self, stores: Sequence[KVStore]) -> None:
        self.stores = tuple(stores)

    @property
    def length(self) -> int:
        """Tokens of the longest one."""
        return max(store.length for store in self.stores)
