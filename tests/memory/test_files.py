"""Files that grow, vanish with their store and are not counted as memory."""

from __future__ import annotations

import copy
import errno
import gc
import mmap
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from longspan.errors import CacheError
from longspan.memory import Buffer, KVStore, Spill
from longspan.memory import mapped as memory
from support.cases import keys_and_values
from support.mappings import flags_at

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_files_have_no_names_and_go_with_the_store(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    store = KVStore("disk", tmp_path)
    store.append(*keys_and_values(500))
    assert list(tmp_path.iterdir()) == [] and len(os.listdir("/proc/self/fd")) > before
    store.select(torch.tensor([0, 0]))
    view = store.values
    expected = view.clone()
    store.reset()
    assert torch.equal(view, expected)  # a view keeps its pages, as a view of memory does
    del view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@linux
@pytest.mark.parametrize("free", [None, [0], [10**9, 0]], ids=["disk", "no memory", "memory runs short"])
def test_files_lie_in_the_folder(tmp_path, free):
    store = KVStore("disk", tmp_path)
    if free is not None:
        store = KVStore(directory=tmp_path, spill=Spill(lambda device: free[0]))
    with nullcontext() if free is None else pytest.warns(UserWarning, match="to 'disk'"):
        store.append(*keys_and_values(300))
        if free is not None:
            free[0] = free[-1]
        store.append(*keys_and_values(300))
    assert Path("/proc/self/maps").read_text().count(f"{tmp_path}/") == 2, "keys and values"


def data_bytes():
    """What RLIMIT_DATA limits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


@linux
def test_mapped_files_are_not_data(tmp_path):
    """Sixteen pieces are held, and anonymous memory grows by less than one."""
    piece, size = keys_and_values(8192), 2 * 8192 * 2 * 16 * 4
    store, before = KVStore("disk", tmp_path), data_bytes()
    for _ in range(16):
        store.append(*piece)
    assert store.nbytes >= 16 * size and data_bytes() - before < size


@linux
def test_reading_reads_ahead(tmp_path):
    """Writing does not, since that would bring in empty pages, and has to leave it as it was."""
    store = KVStore("disk", tmp_path)
    store.append(*keys_and_values(500))
    assert "rr" not in flags_at(store.values.data_ptr())  # rr: advised to be read at random


@linux
def test_disk_blocks_are_allocated_with_the_capacity(tmp_path):
    buffer, like = Buffer("disk", tmp_path), torch.randn(2, 4, 1, 64)
    for n in (100, 1000, 30_000):
        buffer.reserve(like, n)
        used = os.fstat(buffer.block.file.fileno()).st_blocks * 512
        assert buffer.nbytes <= used <= buffer.nbytes + 8 * 2 * 4096


def test_more_tokens_than_a_file_has_addresses_for(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "ROOM", 100)
    store, (keys, values) = KVStore("disk", tmp_path), keys_and_values(0)
    places = set()
    for n in (300, 900, 1, 5000, 3):
        new_keys, new_values = keys_and_values(n)
        keys[0], values = torch.cat((keys[0], new_keys[0]), 2), torch.cat((values, new_values), 2)
        store.append(new_keys, new_values)
        places.add(store.values.data_ptr())
        assert torch.equal(store.keys[0], keys[0]) and torch.equal(store.values, values)
    assert 1 < len(places) < 4


def test_addresses_that_are_scarce(monkeypatch, tmp_path):
    real = mmap.mmap

    def scarce(file, size, **options):
        if size > 2**20:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(file, size, **options)

    monkeypatch.setattr(memory.mmap, "mmap", scarce)
    store, (keys, values) = KVStore("disk", tmp_path), keys_and_values(1000)
    store.append(keys, values)
    assert torch.equal(store.values, values)
    with pytest.raises(CacheError, match="MiB for .* tokens of a layer in .*Cannot allocate memory"):
        store.append(*keys_and_values(20_000))
    assert store.length == 1000 and torch.equal(store.values, values) and torch.equal(store.keys[0], keys[0])


@pytest.mark.parametrize("room", [1064, 1100, 2000, 2**20])
def test_as_many_addresses_as_there_are(monkeypatch, tmp_path, room):
    """Room is asked for in steps, and the last step is what is needed: 1,000 tokens and 64 to spare."""
    real = mmap.mmap

    def scarce(file, size, **options):
        if size > room * 2 * 16 * 4:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(file, size, **options)

    monkeypatch.setattr(memory.mmap, "mmap", scarce)
    buffer, like = Buffer("disk", tmp_path), torch.randn(1, 2, 1, 16)
    buffer.reserve(like, 1000)
    assert buffer.allocated.shape == (1, 2, 1064, 16)


def test_a_file_system_without_holes(monkeypatch, tmp_path):
    """It has to give every block that a file's size says."""
    asked, room = [], 4 * 2 * 1000 * 16

    class Full:
        def __init__(self, *args, **kwargs):
            self._file = open(tmp_path / "kv", "w+b", buffering=0)  # noqa: SIM115

        def __getattr__(self, name):
            return getattr(self._file, name)

        def truncate(self, size):
            asked.append(size)
            if size > room:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self._file.truncate(size)

    monkeypatch.setattr(memory.tempfile, "TemporaryFile", Full)
    buffer = Buffer("disk", tmp_path)
    buffer.reserve(torch.randn(1, 2, 1, 16), 300)
    assert buffer.capacity >= 300 and asked == sorted(asked, reverse=True) and asked[-1] <= room
    with pytest.raises(CacheError, match="No space left"):
        buffer.reserve(torch.randn(1, 2, 1, 16), 3000)
    assert buffer.capacity >= 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_write_to_its_parents_files(tmp_path):
    """The file is one for both: each would read what the other has written."""
    store = KVStore("disk", tmp_path)
    store.append(*keys_and_values(500))
    expected = [x.clone() for x in store.state()]
    child = os.fork()
    if child == 0:
        own, status = copy.deepcopy(store), 1
        try:
            for write in (lambda: store.append(*keys_and_values(1)), store.reserve_one, lambda: store.reserve(501)):
                with pytest.raises(CacheError, match="parent process"):
                    write()
            own.append(*keys_and_values(1))
            status = 0 if own.length == 501 and torch.equal(own.values[:, :, :500], expected[-1]) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.append(*keys_and_values(1))
    assert all(torch.equal(x[:, :, :500], y) for x, y in zip(store.state(), expected, strict=True))
