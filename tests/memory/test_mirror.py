"""The copy of the last tokens on the device, and methods that read what lies apart."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from longspan.attend import Attender
from longspan.errors import CacheError
from longspan.memory import KVStore
from longspan.memory.mirror import Mirror
from longspan.rope import DynamicNTK
from support.cases import all_cases, assert_same, build, in_pieces, in_turn, keys_and_values, make_qkv


@pytest.mark.parametrize("window", [0, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_tokens_are_right(apart, window, seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    store = KVStore(apart, window=window)
    key, value = keys_and_values(0, batch=2)[0][0], torch.empty(2, 2, 0, 16)
    for _ in range(80):
        what = chance.choice(["append"] * 6 + ["crop", "crop", "select", "repeat", "copy"])
        length = store.length
        if what == "append" or length == 0:
            keys, values = keys_and_values(chance.choice([0, 1, 1, 1, 2, 7, 60]), batch=key.shape[0])
            recent = max(0, length - window)
            store.append(keys, values)
            key, value = torch.cat((key, keys[0]), 2), torch.cat((value, values), 2)
            assert store.mirror.start <= recent and store.mirror.stop == store.length
        elif what == "crop":
            n = chance.choice([1, 3, min(30, length), length])
            if n <= length:
                store.crop(n)
                key, value = key[:, :, : length - n], value[:, :, : length - n]
                assert store.mirror.start <= max(0, store.length - window)
        elif what == "select":
            rows = torch.randint(key.shape[0], (chance.choice([1, 2, 3]),))
            store.select(rows)
            key, value = key[rows], value[rows]
        elif what == "repeat" and key.shape[0] < 4:
            store.select(torch.arange(len(key)).repeat_interleave(2))
            key, value = key.repeat_interleave(2, 0), value.repeat_interleave(2, 0)
        elif what == "copy":
            store = copy.deepcopy(store)
        assert torch.equal(store.keys[0], key) and torch.equal(store.values, value)
        if store.length:
            start, stop = sorted(chance.choices(range(store.length + 1), k=2))
            for a, b in ((start, stop), (max(0, store.length - window), store.length)):
                assert torch.equal(store.take(0, a, b), key[:, :, a:b])
                assert torch.equal(store.take(None, a, b), value[:, :, a:b])


@torch.inference_mode(False)
def test_a_copy_made_in_inference_mode_goes_on_outside():
    mirror = Mirror(4)
    with torch.inference_mode():
        mirror.append([torch.ones(2, 1, 3, 4)])
        twin = copy.deepcopy(mirror)
    twin.append([torch.zeros(2, 1, 1, 4)])
    assert (mirror.stop, twin.stop) == (3, 4)
    assert torch.equal(twin.part(0, 0, 4), torch.cat([mirror.part(0, 0, 3), torch.zeros(2, 1, 1, 4)], 2))


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_recent_tokens_are_not_fetched(apart, piece):
    """What is held off the device is made unreadable: the window before a piece, and the piece, are read there."""
    window, store = 40, KVStore(apart, window=40)
    store.append(*keys_and_values(1000))
    for _ in range(60):
        first = store.length - window
        expected = torch.cat((store.take(0, first, store.length).clone(), (new := keys_and_values(piece))[0][0]), 2)
        store.append(*new)
        for stream in store.allocated:
            stream.fill_(float("nan"))
        assert torch.equal(store.take(0, first, store.length), expected)
        assert torch.equal(store.take(None, store.length - piece, store.length), new[1])
    assert store.take(0, 0, store.length).isnan().any()  # what is wider comes from where all of it is


@pytest.mark.parametrize("window", [0, 40, 1000])
def test_the_copy_stays_small_and_moves_seldom(window):
    mirror, largest, moves, place = Mirror(window), 0, 0, None
    for n in [5000, *[1] * 3000]:
        mirror.append([keys_and_values(n)[1]])
        largest = max(largest, mirror.nbytes) if n == 1 else 0
        now = mirror.part(0, mirror.start, mirror.stop).data_ptr()
        moves, place = moves + (now != place), now
    assert moves <= 3 + 3000 / (window + 64)
    assert largest <= (2 * (2 * window + 64) + 256 + 128) * 2 * 16 * 4


def test_no_copy_where_none_is_needed():
    for tier in ("device", "host", "disk"):
        store = KVStore(tier, window=40)
        store.append(*keys_and_values(100))
        assert store.mirror is None


def test_the_copy_counts(apart):
    store = KVStore(apart, window=40)
    store.append(*keys_and_values(100))
    sizes = store.bytes_by_tier
    assert sizes["device"] == store.mirror.nbytes > 0 and sizes[apart] > 0 and store.nbytes == sum(sizes.values())


APART = [c for c in all_cases(selecting=True) if not c.values[0].method.length_dependent]


@pytest.mark.parametrize(
    ("case", "apart"), in_turn(APART, {"host": ("host",), "disk": ("disk",)}, every=2), indirect=["apart"]
)
def test_methods_that_choose_read_what_lies_apart(case, apart, rope):
    """The same output from keys off the device, of which ranges are fetched and choices gathered."""
    n, pads = 70, (0, 5)
    qkv = make_qkv(n, batch=2)
    cuts = (12, 40, 67, 68, 69, n)
    attender = Attender(case.method, case.window)
    here, there = KVStore(), KVStore(apart, window=case.window)
    wanted = in_pieces(attender, qkv, rope, cuts, here, scale=0.25, padding=pads)
    assert_same(in_pieces(attender, qkv, rope, cuts, there, scale=0.25, padding=pads), wanted)
    assert there.offloaded and not here.offloaded


def test_dynamic_angles_want_keys_at_hand(apart, rope):
    case = build("longheads", {"angles": DynamicNTK(2.0)})
    with pytest.raises(CacheError, match="DynamicNTK rotates every key.*kv_tier='device'"):
        Attender(case.method, case.window)(*make_qkv(30), rope, scale=0.25, store=KVStore(apart))


def test_rows_that_stay_as_they_are_are_not_copied():
    mirror = Mirror(4)
    mirror.append([torch.randn(2, 1, 3, 4)])
    same, other = mirror.selected([0, 1]), mirror.selected([1, 0])
    assert same.part(0, 0, 3).data_ptr() == mirror.part(0, 0, 3).data_ptr()
    assert torch.equal(other.part(0, 0, 3), mirror.part(0, 0, 3)[[1, 0]])
