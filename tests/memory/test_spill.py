"""A store that moves to the next tier when memory runs short: nothing is lost, and it says so."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch

from longspan.errors import CacheError, out_of_memory
from longspan.memory import KVStore, Spill
from longspan.memory.mapped import Memory

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
    new_keys, new_values = tokens(100)
    with pytest.warns(
        UserWarning, match="memory of cpu runs short, so keys and values move from tier 'device' to 'disk'"
    ):
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
    with pytest.warns(UserWarning, match="runs short") as said:
        keys, _ = grown(store, (100,))
    assert [str(one.message).partition("from tier ")[2] for one in said] == ["'device' to 'host'", "'host' to 'disk'"]
    assert store.tier == "disk" and torch.equal(store.keys[0][:, :, 5:], keys)


def test_what_was_short_at_once_begins_below():
    store = KVStore(spill=Spill(lambda device: 0))
    with pytest.warns(UserWarning, match="runs short"):
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
    left[0], lay = 0, store.placement
    with pytest.warns(UserWarning, match="to 'disk'"):
        slot = store.reserve_one()
    assert (
        slot is not None and slot.moved and store.placement is not lay
    )  # on the CPU, a kernel writes to mapped files too
    assert store.tier == "disk" and torch.equal(store.keys[0][:, :, :5], keys)


def test_the_folder_is_that_of_the_files(tmp_path):
    store = KVStore(directory=tmp_path, spill=Spill(lambda device: 0))
    with pytest.warns(UserWarning, match="runs short"):
        grown(store, (3,))
    assert store.directory == tmp_path
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        KVStore(directory=tmp_path / "nowhere", spill=Spill(lambda device: 0))


@pytest.fixture
def refusing(monkeypatch):
    """Memory refuses more than so many tokens, in all tiers or on the device alone; nobody says what is free."""

    def set_to(most, host=True):
        make = Memory.__init__

        def checked(self, kind, capacity, *, host):
            if capacity > most and (refused_on_host or not host):
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
            make(self, kind, capacity, host=host)

        refused_on_host = host
        monkeypatch.setattr(Memory, "__init__", checked)
        return KVStore(window=8, spill=OnGPU(lambda device: None))

    return set_to


@pytest.mark.parametrize(
    ("host", "tiers"), [(True, ["'device' to 'host'", "'host' to 'disk'"]), (False, ["'device' to 'host'"])]
)
def test_an_allocation_that_is_refused_goes_on_below(refusing, host, tiers):
    store = refusing(100, host)
    keys, values = grown(store, (5, 20))
    assert store.tier == "device"
    with pytest.warns(UserWarning, match="memory of cpu was refused") as said:
        more_keys, more_values = grown(store, (200, 3))
    assert [str(one.message).partition("from tier ")[2] for one in said] == tiers
    assert store.tier == ("disk" if host else "host")
    assert torch.equal(store.keys[0], torch.cat((keys, more_keys), dim=2))
    assert torch.equal(store.values, torch.cat((values, more_values), dim=2))


def test_the_first_allocation_that_is_refused_goes_on_below(refusing):
    store = refusing(100)
    with pytest.warns(UserWarning, match="was refused"):
        keys, values = grown(store, (300,))
    assert store.tier == "disk" and torch.equal(store.keys[0], keys) and torch.equal(store.values, values)


def test_room_for_a_token_that_is_refused(refusing):
    store = refusing(100)
    keys, _ = grown(store, (36,))
    while store.length < store.capacity:
        assert store.reserve_one() is not None
        store.commit_one()
    with pytest.warns(UserWarning, match="was refused"):
        assert store.reserve_one().moved
    assert store.tier == "disk" and torch.equal(store.keys[0][:, :, :36], keys)


def test_another_error_is_no_refusal(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Memory, "__init__", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        grown(KVStore(spill=Spill(lambda device: None)), (3,))
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not out_of_memory(CacheError("out of memory"))


def test_a_reset_begins_anew_on_the_device():
    free = [0]
    store = KVStore(window=4, spill=Spill(lambda device: free[0]))
    with pytest.warns(UserWarning, match="runs short"):
        grown(store, (30,))
    assert store.tier == "disk"
    free[0] = 10**9
    store.reset()
    keys, values = grown(store, (7, 1))
    assert store.tier == "device" and store.bytes_by_tier["disk"] == 0
    assert torch.equal(store.keys[0], keys) and torch.equal(store.values, values)


LIMITED = """
import resource, warnings, torch
from longspan.hf.tiers import new_store
import longspan.hf.tiers as tiers
tiers.free_memory = lambda device: None
x = torch.randn(1, 1, 1000, 2000)
store = new_store("auto", None, 0)
store.append([x], x)
data = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (data + 40_000_000, data + 40_000_000))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(9):
        store.append([x], x)
assert store.tier == "disk" and store.length == 10_000, store
assert all(torch.equal(store.values[:, :, a : a + 1000], x) for a in range(0, 10_000, 1000))
print(*(one.message for one in caught))
store.reset()
store.append([x[:, :, :9]], x[:, :, :9])
assert store.tier == "device" and torch.equal(store.keys[0], x[:, :, :9])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on data is Linux's")
@pytest.mark.long
def test_under_a_limit_on_memory():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.count("was refused, so keys and values move from tier 'device' to 'disk'") == 1
