"""Disks that are full, and folders that went away: nothing that was held is lost."""

from __future__ import annotations

import errno

import pytest
import torch

from longspan.errors import CacheError
from longspan.memory import Buffer, KVStore
from longspan.memory import mapped as memory
from support.cases import keys_and_values


def same(store, keys, values):
    return store.length == values.shape[2] and torch.equal(store.keys[0], keys[0]) and torch.equal(store.values, values)


@pytest.mark.parametrize("room", [0, 150_000, 300_000])
def test_a_full_disk(monkeypatch, tmp_path, room):
    """``room`` is enough for none, for one and not the other, and for neither of the buffers' new sizes."""
    store, (keys, values) = KVStore("disk", tmp_path), keys_and_values(1000)
    store.append(keys, values)
    monkeypatch.setattr(memory, "free_space", lambda file: room if room != 150_000 else next(spaces))
    spaces = iter([1e9, 1e9, 0, 0, 0])
    with pytest.raises(CacheError, match=r"MiB for .* tokens of a layer in .*No space left.*nothing was lost.*kv_dir="):
        store.append(*keys_and_values(4000))
    assert same(store, keys, values)
    monkeypatch.undo()
    store.append(*keys_and_values(4000))
    assert store.length == 5000 and torch.equal(store.values[:, :, :1000], values)


def test_a_disk_that_is_full_from_the_start(monkeypatch, tmp_path):
    store = KVStore("disk", tmp_path)
    spaces = iter([1e9, 0])
    monkeypatch.setattr(memory, "free_space", lambda file: next(spaces))
    with pytest.raises(CacheError, match="No space left"):
        store.append(*keys_and_values(10))
    assert (store.length, store.capacity, store.nbytes) == (0, 0, 0)
    monkeypatch.undo()
    store.append(*keys_and_values(10, batch=3))
    assert len(store.values) == 3


def test_a_disk_that_is_full_when_blocks_are_asked_for(monkeypatch, tmp_path):
    store, (keys, values) = KVStore("disk", tmp_path), keys_and_values(1000)
    store.append(keys, values)
    calls = []

    def fallocate(file, start, size):
        calls.append((start, size))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory.os, "posix_fallocate", fallocate, raising=False)
    with pytest.raises(CacheError, match="No space left"):
        store.append(*keys_and_values(4000))
    assert same(store, keys, values)


def test_the_last_of_the_space_is_used(monkeypatch, tmp_path):
    """Growing by half does not fit any more, and what is needed does."""
    buffer, like = Buffer("disk", tmp_path), torch.randn(1, 2, 1, 16)
    buffer.reserve(like, 936)
    assert buffer.capacity == 1000
    monkeypatch.setattr(memory, "free_space", lambda file: space * 2 * 16 * 4)
    space = 500
    buffer.reserve(like, 1001)
    assert buffer.capacity == 1500  # half as much again, as long as there is room for what is new
    space = 100
    buffer.reserve(like, 1600)
    assert buffer.capacity == 1600
    with pytest.raises(CacheError, match="No space left"):
        buffer.reserve(like, 1701)
    assert buffer.capacity == 1600


def test_a_file_system_that_cannot_allocate(monkeypatch, tmp_path):
    def unsupported(*args):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(memory.os, "posix_fallocate", unsupported, raising=False)
    store, (keys, values) = KVStore("disk", tmp_path), keys_and_values(1000)
    store.append(keys, values)
    assert same(store, keys, values)


def test_a_folder_that_went_away(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    store = KVStore("disk", folder)
    folder.rmdir()
    for _ in range(2):
        with pytest.raises(ValueError, match="kv_dir .*gone is not a folder"):
            store.append(*keys_and_values(1))
        assert (store.length, store.capacity, store.nbytes) == (0, 0, 0)


def test_selecting_on_a_full_disk_loses_nothing(monkeypatch, tmp_path):
    store, (keys, values) = KVStore("disk", tmp_path), keys_and_values(1000)
    store.append(keys, values)
    spaces = iter([1e9, 0])
    monkeypatch.setattr(memory, "free_space", lambda file: next(spaces))
    with pytest.raises(CacheError, match="No space left"):
        store.select(torch.tensor([0, 0]))
    assert len(store.values) == 1 and same(store, keys, values)


@pytest.mark.parametrize("make_one", [Buffer, KVStore])
@pytest.mark.parametrize(
    ("given", "match"),
    [
        (("ram",), "kv_tier must be one of auto, device, host, disk, not 'ram'"),
        (("host", "."), "kv_dir is for kv_tier='disk'"),
        (("device", "."), "kv_dir is for kv_tier='disk'"),
        (("disk", "no/such/folder"), "kv_dir no/such/folder is not a folder"),
    ],
)
def test_parameters_that_cannot_be(make_one, given, match):
    with pytest.raises(ValueError, match=match):
        make_one(*given)


def test_a_window_that_cannot_be():
    with pytest.raises(ValueError, match="not -1"):
        KVStore(window=-1)


def test_a_full_disk_leaves_no_kernel_that_knows_old_memory(tmp_path, monkeypatch):
    store = KVStore("disk", tmp_path)
    store.append(*keys_and_values(100))
    lay = store.placement
    monkeypatch.setattr(memory, "free_space", lambda file: 0)
    with pytest.raises(CacheError, match="No space left"):
        store.reserve(10_000)
    assert store.placement is not lay and store.length == 100
