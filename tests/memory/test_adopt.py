"""A store goes on from memory that was written before, as one does that appended the same tokens."""

from __future__ import annotations

import pytest
import torch

from longspan.memory import Buffer, KVStore
from longspan.memory.mapped import Kind, Memory

LENGTH, CAPACITY = 300, 400


@pytest.fixture
def offloaded(monkeypatch):
    """A GPU's host tier on a CPU: what is not on the device counts as elsewhere, and is copied when it is read."""
    monkeypatch.setattr(Buffer, "offloaded", property(lambda self: self.tier != "device"))


def block(x):
    memory = Memory(Kind.of(x), CAPACITY, host=True)
    memory.tensor[:, :, : x.shape[2]] = x
    return memory


@pytest.fixture
def both():
    """A store that appended, one that adopted, and the tokens."""
    x = torch.randn(1, 2, LENGTH, 16)
    appended, adopted = (KVStore("host", None, window=64) for _ in range(2))
    appended.append([x], 2 * x)
    adopted.adopt([block(x), block(2 * x)], LENGTH)
    return appended, adopted, x


def test_recent_tokens_are_mirrored(offloaded, both):
    appended, adopted, _x = both
    new = torch.randn(1, 2, 5, 16)
    for store in (appended, adopted):
        store.append([new], new)
    for start, stop in [(0, 5), (LENGTH - 10, LENGTH + 5), (LENGTH, LENGTH + 5)]:
        assert torch.equal(adopted.take(0, start, stop), appended.take(0, start, stop))


def test_there_is_the_room_that_the_memory_has(both):
    adopted = both[1]
    assert adopted.capacity == CAPACITY
    adopted.reserve(CAPACITY + 1)
    assert adopted.capacity > CAPACITY and torch.equal(adopted.keys[0], both[2])
