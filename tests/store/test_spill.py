"""A store that moves to the next tier when memory runs short: nothing is lost, and it says so."""

from __future__ import annotations

import warnings

import pytest
import torch

from longspan.store import KVStore, Spill

FREE = 10_000  # bytes; 0.8 of it may be asked for


class OnGPU(Spill):
    """As for a model on a GPU, whose memory is not the host's."""

    def below(self, tier, device):
        return super().below(tier, torch.device("cuda"))


def tokens(n):
    return [torch.randn(1, 2, n, 4)], torch.randn(1, 2, n, 6)  # 80 bytes a token


def grown(store, steps):
    """The store after appending so many tokens at a time, and all of them."""
    keys, values = [], []
    for n in steps:
        new_keys, new_values = tokens(n)
        store.append(new_keys, new_values)
        keys.append(new_keys[0])
        values.append(new_values)
    return torch.cat(keys, dim=2), torch.cat(values, dim=2)


def test_it_moves_when_memory_lacks_and_loses_nothing():
    store = KVStore(window=8, spill=Spill(lambda device: FREE))
    keys, values = grown(store, (5, 20))
    assert store.tier == "device"
    with pytest.warns(
        UserWarning, match="memory of cpu runs short, so keys and values move from tier 'device' to 'disk'"
    ):
        new_keys, new_values = tokens(100)
        store.append(new_keys, new_values)
    assert store.tier == "disk" and store.bytes_by_tier["device"] == 0 < store.bytes_by_tier["disk"]
    assert torch.equal(store.keys[0], torch.cat((keys, new_keys[0]), dim=2))
    assert torch.equal(store.values, torch.cat((values, new_values), dim=2))


def test_tiers_follow_one_another():
    free = {"cpu": FREE}
    store = KVStore(spill=OnGPU(lambda device: free[device.type]))
    free["cuda"] = FREE
    grown(store, (5,))
    free["cpu"] = 0
    with pytest.warns(UserWarning) as said:
        keys, _ = grown(store, (100,))
    assert [str(one.message).partition("from tier ")[2] for one in said] == ["'device' to 'host'", "'host' to 'disk'"]
    assert store.tier == "disk" and torch.equal(store.keys[0][:, :, 5:], keys)


def test_what_was_short_at_once_begins_below():
    store = KVStore(spill=Spill(lambda device: 0))
    with pytest.warns(UserWarning):
        keys, values = grown(store, (3,))
    assert store.tier == "disk" and torch.equal(store.keys[0], keys) and torch.equal(store.values, values)


@pytest.mark.parametrize("free", [10**9, None])  # None: nobody says
def test_it_stays_where_there_is_room(free):
    store = KVStore(spill=Spill(lambda device: free))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grown(store, (5, 200, 1, 1))
    assert store.tier == "device"


def test_a_token_that_a_kernel_writes_moves_it_too():
    left = [10**9]
    store = KVStore(spill=Spill(lambda device: left[0]))
    keys, _ = grown(store, (5,))
    while store.length < store.capacity:
        assert store.reserve_one() is not None
        store.commit_one()
    left[0] = 0
    with pytest.warns(UserWarning, match="to 'disk'"):
        slot = store.reserve_one()
    assert slot is not None and slot.moved and store.bound is None  # on the CPU, a kernel writes to mapped files too
    assert store.tier == "disk" and torch.equal(store.keys[0][:, :, :5], keys)


def test_the_folder_is_that_of_the_files(tmp_path):
    store = KVStore(directory=tmp_path, spill=Spill(lambda device: 0))
    with pytest.warns(UserWarning):
        grown(store, (3,))
    assert store.directory == tmp_path
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        KVStore(directory=tmp_path / "nowhere", spill=Spill(lambda device: 0))
