"""The key-value store of one layer: buffers that grow in place, on the device, in host memory or in mapped files."""

from longspan.memory.buffer import Buffer, KVTier, Tier, check_tier
from longspan.memory.fetched import Fetched
from longspan.memory.joined import JoinedStores
from longspan.memory.kv import KVStore
from longspan.memory.protocols import KeyIndex, Placement, Slot
from longspan.memory.quantised import exact
from longspan.memory.spill import Spill

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
    "exact",
]
