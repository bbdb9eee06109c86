"""The tiers: files that grow and vanish, disks that are full, and the copy of the last tokens on the device."""

from __future__ import annotations

import copy
import errno
import gc
import mmap
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import longspan
from cases import all_cases, assert_same, build, in_pieces, make_qkv
from hf_models import left_padded, make, prompts
from longspan.attend import Attender
from longspan.errors import CacheError
from longspan.hf import tiers
from longspan.hf.cache import StoreLayer
from longspan.rope import DynamicNTK
from longspan.store import Buffer, KVStore, memory
from longspan.store.mirror import Mirror

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def tokens(n, batch=1, heads=2, size=16):
    return [torch.randn(batch, heads, n, size)], torch.randn(batch, heads, n, size)


# Files


@linux
def test_files_have_no_names_and_go_with_the_store(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    store = KVStore("disk", tmp_path)
    store.append(*tokens(500))
    assert list(tmp_path.iterdir()) == [] and len(os.listdir("/proc/self/fd")) > before
    store.select(torch.tensor([0, 0]))
    view = store.values
    expected = view.clone()
    store.reset()
    assert torch.equal(view, expected)  # a view keeps its pages, as a view of memory does
    del view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def data_bytes():
    """What RLIMIT_DATA limits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


@linux
def test_mapped_files_are_not_data(tmp_path):
    """Sixteen pieces are held, and anonymous memory grows by less than one."""
    piece, size = tokens(8192), 2 * 8192 * 2 * 16 * 4
    store, before = KVStore("disk", tmp_path), data_bytes()
    for _ in range(16):
        store.append(*piece)
    assert store.nbytes >= 16 * size and data_bytes() - before < size


@linux
def test_reading_reads_ahead(tmp_path):
    """Writing does not, since that would bring in empty pages, and has to leave it as it was."""
    store = KVStore("disk", tmp_path)
    store.append(*tokens(500))
    flags = [line.split() for line in Path("/proc/self/smaps").read_text().splitlines() if line.startswith("VmFlags")]
    assert flags and not any("rr" in line for line in flags)  # rr: advised to be read at random


@linux
def test_disk_blocks_are_allocated_with_the_capacity(tmp_path):
    buffer, like = Buffer("disk", tmp_path), torch.randn(2, 4, 1, 64)
    for n in (100, 1000, 30_000):
        buffer.reserve(like, n)
        used = os.fstat(buffer._block._file.fileno()).st_blocks * 512
        assert buffer.nbytes <= used <= buffer.nbytes + 8 * 2 * 4096


def test_more_tokens_than_a_file_has_addresses_for(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "ROOM", 100)
    store, (keys, values) = KVStore("disk", tmp_path), tokens(0)
    places = set()
    for n in (300, 900, 1, 5000, 3):
        new_keys, new_values = tokens(n)
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
    store, (keys, values) = KVStore("disk", tmp_path), tokens(1000)
    store.append(keys, values)
    assert torch.equal(store.values, values)
    with pytest.raises(CacheError, match="MiB for .* tokens of a layer in .*Cannot allocate memory"):
        store.append(*tokens(20_000))
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
    assert buffer.held.shape == (1, 2, 1064, 16)


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


# Full disks


def same(store, keys, values):
    return store.length == values.shape[2] and torch.equal(store.keys[0], keys[0]) and torch.equal(store.values, values)


@pytest.mark.parametrize("room", [0, 150_000, 300_000])
def test_a_full_disk(monkeypatch, tmp_path, room):
    """``room`` is enough for none, for one and not the other, and for neither of the buffers' new sizes."""
    store, (keys, values) = KVStore("disk", tmp_path), tokens(1000)
    store.append(keys, values)
    monkeypatch.setattr(memory, "_free", lambda file: room if room != 150_000 else next(spaces))
    spaces = iter([1e9, 1e9, 0, 0, 0])
    with pytest.raises(CacheError, match=r"MiB for .* tokens of a layer in .*No space left.*nothing was lost.*kv_dir="):
        store.append(*tokens(4000))
    assert same(store, keys, values)
    monkeypatch.undo()
    store.append(*tokens(4000))
    assert store.length == 5000 and torch.equal(store.values[:, :, :1000], values)


def test_a_disk_that_is_full_from_the_start(monkeypatch, tmp_path):
    store = KVStore("disk", tmp_path)
    spaces = iter([1e9, 0])
    monkeypatch.setattr(memory, "_free", lambda file: next(spaces))
    with pytest.raises(CacheError, match="No space left"):
        store.append(*tokens(10))
    assert (store.length, store.batch, store.nbytes) == (0, 0, 0)
    monkeypatch.undo()
    store.append(*tokens(10, batch=3))
    assert store.batch == 3


def test_a_disk_that_is_full_when_blocks_are_asked_for(monkeypatch, tmp_path):
    store, (keys, values) = KVStore("disk", tmp_path), tokens(1000)
    store.append(keys, values)
    calls = []

    def fallocate(file, start, size):
        calls.append((start, size))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory.os, "posix_fallocate", fallocate, raising=False)
    with pytest.raises(CacheError, match="No space left"):
        store.append(*tokens(4000))
    assert same(store, keys, values)


def test_the_last_of_the_space_is_used(monkeypatch, tmp_path):
    """Growing by half does not fit any more, and what is needed does."""
    buffer, like = Buffer("disk", tmp_path), torch.randn(1, 2, 1, 16)
    buffer.reserve(like, 936)
    assert buffer.capacity == 1000
    monkeypatch.setattr(memory, "_free", lambda file: space * 2 * 16 * 4)
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
    store, (keys, values) = KVStore("disk", tmp_path), tokens(1000)
    store.append(keys, values)
    assert same(store, keys, values)


def test_a_folder_that_went_away(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    store = KVStore("disk", folder)
    folder.rmdir()
    for _ in range(2):
        with pytest.raises(ValueError, match="kv_dir .*gone is not a folder"):
            store.append(*tokens(1))
        assert (store.length, store.batch, store.nbytes) == (0, 0, 0)


def test_selecting_on_a_full_disk_loses_nothing(monkeypatch, tmp_path):
    store, (keys, values) = KVStore("disk", tmp_path), tokens(1000)
    store.append(keys, values)
    spaces = iter([1e9, 0])
    monkeypatch.setattr(memory, "_free", lambda file: next(spaces))
    with pytest.raises(CacheError, match="No space left"):
        store.repeat(2)
    assert store.batch == 1 and same(store, keys, values)


@pytest.mark.parametrize("make_one", [Buffer, KVStore])
@pytest.mark.parametrize(
    ("given", "match"),
    [
        (("ram",), "kv_tier is one of device, host, disk, not 'ram'"),
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


# The copy on the device. The tests have no second device: here the host's memory counts as apart from the tensors'.


@pytest.fixture(params=["host", "disk"])
def apart(request, monkeypatch):
    monkeypatch.setattr(Buffer, "apart", property(lambda self: self.tier != "device"))
    return request.param


@pytest.mark.parametrize("window", [0, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_take_and_gather_are_right(apart, window, seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    store = KVStore(apart, window=window)
    key, value = tokens(0, batch=2)[0][0], torch.empty(2, 2, 0, 16)
    for _ in range(80):
        what = chance.choice(["append"] * 6 + ["crop", "crop", "select", "repeat", "copy"])
        length = store.length
        if what == "append" or length == 0:
            keys, values = tokens(chance.choice([0, 1, 1, 1, 2, 7, 60]), batch=key.shape[0])
            recent = max(0, length - window)
            store.append(keys, values)
            key, value = torch.cat((key, keys[0]), 2), torch.cat((value, values), 2)
            assert store._mirror.start <= recent and store._mirror.stop == store.length
        elif what == "crop":
            n = chance.choice([1, 3, min(30, length), length])
            if n <= length:
                store.crop(n)
                key, value = key[:, :, : length - n], value[:, :, : length - n]
                assert store._mirror.start <= max(0, store.length - window)
        elif what == "select":
            rows = torch.randint(key.shape[0], (chance.choice([1, 2, 3]),))
            store.select(rows)
            key, value = key[rows], value[rows]
        elif what == "repeat" and key.shape[0] < 4:
            store.repeat(2)
            key, value = key.repeat_interleave(2, 0), value.repeat_interleave(2, 0)
        elif what == "copy":
            store = copy.deepcopy(store)
        assert torch.equal(store.keys[0], key) and torch.equal(store.values, value)
        if store.length:
            start, stop = sorted(chance.choices(range(store.length + 1), k=2))
            for a, b in ((start, stop), (max(0, store.length - window), store.length)):
                assert torch.equal(store.take(0, a, b), key[:, :, a:b])
                assert torch.equal(store.take(None, a, b), value[:, :, a:b])
            index = torch.randint(store.length, (1, 2, 9))
            expected = value.gather(2, index[..., None].expand(*value.shape[:2], 9, 16))
            assert torch.equal(store.gather(None, index), expected)


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_recent_tokens_are_not_fetched(apart, piece):
    """What is held off the device is made unreadable: the window before a piece, and the piece, are read there."""
    window, store = 40, KVStore(apart, window=40)
    store.append(*tokens(1000))
    for _ in range(60):
        first = store.length - window
        expected = torch.cat((store.take(0, first, store.length).clone(), (new := tokens(piece))[0][0]), 2)
        store.append(*new)
        for buffer in store._buffers:
            buffer.held.fill_(float("nan"))
        assert torch.equal(store.take(0, first, store.length), expected)
        assert torch.equal(store.take(None, store.length - piece, store.length), new[1])
    assert store.take(0, 0, store.length).isnan().any()  # what is wider comes from where all of it is


@pytest.mark.parametrize("window", [0, 40, 1000])
def test_the_copy_stays_small_and_moves_seldom(window):
    mirror, largest, moves, place = Mirror(window), 0, 0, None
    for n in [5000, *[1] * 3000]:
        mirror.append([tokens(n)[1]])
        largest = max(largest, mirror.nbytes) if n == 1 else 0
        moves, place = moves + (mirror._buffers[0] is not place), mirror._buffers[0]
    assert moves <= 3 + 3000 / (window + 64)
    assert largest <= (2 * (2 * window + 64) + 256 + 128) * 2 * 16 * 4


def test_no_copy_where_none_is_needed():
    for tier in ("device", "host", "disk"):
        store = KVStore(tier, window=40)
        store.append(*tokens(100))
        assert store._mirror is None


def test_the_copy_counts(apart):
    store = KVStore(apart, window=40)
    store.append(*tokens(100))
    sizes = store.bytes_by_tier
    assert sizes["device"] == store._mirror.nbytes > 0 and sizes[apart] > 0 and store.nbytes == sum(sizes.values())


# On a model


@pytest.fixture(scope="module")
def model():
    return make("llama")


@pytest.mark.parametrize(("tier", "method"), [("host", "dca"), ("disk", "dca"), ("disk", "self-extend")])
def test_the_same_tokens(model, tier, method, tmp_path):
    ids, mask, _ = left_padded(prompts().repeat(1, 4), [7, 0])
    options = {"attention_mask": mask, "max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None}
    modes = [{"do_sample": False}, {"do_sample": False, "num_beams": 2}, {"do_sample": False, "prefill_chunk_size": 17}]
    with longspan.extended(model, method):
        expected = [model.generate(ids, **options, **mode) for mode in modes]
    with longspan.extended(model, method, kv_tier=tier, kv_dir=tmp_path if tier == "disk" else None):
        for mode, tokens_expected in zip(modes, expected, strict=True):
            assert torch.equal(model.generate(ids, **options, **mode), tokens_expected)


def test_a_kept_document(model, tmp_path):
    """A cache on disk that is filled once, copied for one question and cropped for another."""
    text, question = prompts(1), prompts(1)[:, :5]
    ids = torch.cat((text, question), dim=1)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with longspan.extended(model, "dca"):
        expected = model.generate(ids, **options)
    report = longspan.extend(model, "dca", kv_tier="disk", kv_dir=tmp_path)
    try:
        cache = longspan.new_cache(model)
        assert all(layer.store.tier == "disk" and layer.store.directory == tmp_path for layer in cache.layers)
        assert all(layer.store.window == report.window for layer in cache.layers)
        model(text, past_key_values=cache)
        assert torch.equal(model.generate(ids, past_key_values=copy.deepcopy(cache), **options), expected)
        assert cache.get_seq_length() == text.shape[1]
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
        cache.crop(text.shape[1] - cache.get_seq_length())
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
        assert cache.bytes_by_tier == {"device": 0, "host": 0, "disk": cache.nbytes} and cache.nbytes > 0
        cache.reset()
        assert cache.nbytes == 0
    finally:
        longspan.restore(model)
    assert (report.kv_tier, report.kv_dir) == ("disk", tmp_path)
    assert report.to_dict()["kv_tier"] == "disk" and report.to_dict()["kv_dir"] == str(tmp_path)
    assert "in mapped files in" in str(report)


def test_the_report_names_the_tier(model):
    assert "on the device" in str(longspan.inspect(model, "full"))
    report = longspan.inspect(model, "full", kv_tier="host")
    assert "in host memory" in str(report) and (report.kv_tier, report.kv_dir) == ("host", None)


def test_a_relative_folder_is_made_absolute(model, tmp_path, monkeypatch):
    """Caches are made later, when the working folder may be another."""
    monkeypatch.chdir(tmp_path)
    assert longspan.inspect(model, "full", kv_tier="disk", kv_dir=".").kv_dir == tmp_path.resolve()


def test_extend_refuses(model, tmp_path, monkeypatch):
    for given, match in (
        ({"kv_tier": "tape"}, "kv_tier is one of"),
        ({"kv_tier": "host", "kv_dir": tmp_path}, "kv_dir is for"),
        ({"kv_tier": "disk", "kv_dir": tmp_path / "no"}, "is not a folder"),
    ):
        with pytest.raises(ValueError, match=match):
            longspan.extend(model, "full", **given)

    def unwritable(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tiers.tempfile, "TemporaryFile", unwritable)
    with pytest.raises(ValueError, match=r"cannot be written to \(Permission denied\); pass"):
        longspan.extend(model, "full", kv_tier="disk", kv_dir=tmp_path)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_gpu_needs_a_method_that_selects(tier):
    tiers.refuse_apart("device", torch.device("cuda"), False)
    tiers.refuse_apart(tier, torch.device("cuda"), True)
    tiers.refuse_apart(tier, torch.device("cpu"), False)
    module = torch.nn.Linear(2, 2)
    module.child = torch.nn.Linear(2, 2, device="meta")
    module.child._hf_hook = SimpleNamespace(execution_device="cuda:1")  # as accelerate leaves offloaded weights
    layer = SimpleNamespace(rope=object(), module=module, sliding=None)
    static, selecting = SimpleNamespace(), SimpleNamespace(selects=True)
    with pytest.raises(CacheError, match=f"kv_tier='{tier}' keeps the cache off cuda:1.*a method that selects"):
        tiers.prepare_tier(static, [layer], tier, None)
    tiers.prepare_tier(selecting, [layer], tier, None)
    tiers.prepare_tier(static, [layer], "device", None)
    module.child._hf_hook.execution_device = "cpu"
    tiers.prepare_tier(static, [layer], tier, None)


def test_a_model_that_was_moved_afterwards():
    k = torch.empty(1, 2, 3, 4, device="meta")
    with pytest.raises(CacheError, match="kv_tier='host' keeps the cache off meta"):
        StoreLayer(KVStore("host"), selects=False).update(k, k)
    StoreLayer(KVStore("host"), selects=True).update(k, k)
    StoreLayer(KVStore(), selects=False).update(k, k)


def test_stock_layers_are_named():
    report = longspan.inspect(make("smollm3"), "dca", kv_tier="host")
    assert any("the cache of 1 stock layers stays on the device" in warning for warning in report.warnings)


@linux
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no such folder")
def test_a_folder_in_memory_is_named(model):
    if tiers._file_system(Path("/dev/shm")) != "tmpfs":
        pytest.skip("/dev/shm is not in memory here")
    report = longspan.inspect(model, "full", kv_tier="disk", kv_dir="/dev/shm")
    assert any("kept in memory by the system (tmpfs)" in warning for warning in report.warnings)


@pytest.mark.parametrize("case", [c for c in all_cases(selecting=True) if not c.values[0].method.follows_total])
def test_methods_that_choose_read_what_lies_apart(apart, case, rope):
    """The same output from keys off the device, of which ranges are fetched and choices gathered."""
    n, pads = 70, (0, 5)
    qkv = make_qkv(n, batch=2)
    cuts = (12, 40, 67, 68, 69, n)
    attender = Attender(case.method, case.window)
    here, there = KVStore(), KVStore(apart, window=case.window)
    wanted = in_pieces(attender, qkv, rope, cuts, here, scale=0.25, padding=pads)
    assert_same(in_pieces(attender, qkv, rope, cuts, there, scale=0.25, padding=pads), wanted)
    assert there.apart and not here.apart


def test_dynamic_angles_want_keys_at_hand(apart, rope):
    case = build("longheads", {"angles": DynamicNTK(2.0)})
    with pytest.raises(CacheError, match="DynamicNTK turns every key.*kv_tier='device'"):
        Attender(case.method, case.window)(*make_qkv(30), rope, scale=0.25, store=KVStore(apart))
