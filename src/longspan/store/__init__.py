"""The key-value store of one layer: buffers that grow in place, on the device, in host memory or in mapped files."""

from longspan.store.buffer import Buffer, KVTier, Tier, check_tier
from longspan.store.fetched import Fetched
from longspan.store.joined import JoinedStores
from longspan.store.kv import KVStore
from longspan.store.protocols import KeyIndex, Placement, Slot
from longspan.store.spill import Spill

__all__ = [
    "Buffer",
    "Fetched",
    "JoinedStores",
    "KVStore",
    "KVTier",
    "KeyIndex",
    "Placement",
    "Slot",
    "Spill",
    "Tier",
    "check_tier",
]
