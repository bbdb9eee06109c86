"""The key-value store of one layer: buffers that grow in place, on the device, in host memory or in mapped files."""

from longspan.store.buffer import Buffer, Tier, check_tier
from longspan.store.fetched import Fetched
from longspan.store.kv import KeyIndex, KVStore, Slot, TakesOne

__all__ = ["Buffer", "Fetched", "KeyIndex", "KVStore", "Slot", "TakesOne", "Tier", "check_tier"]
