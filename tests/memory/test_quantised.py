"""Codes are as near as half a scale, and a store that has some takes in, drops and gives tokens as any other."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import CacheError
from longspan.memory import KVStore
from longspan.memory.mapped import Kind, Memory
from longspan.memory.quantised import BLOCK, Coded, Codes, Quantised, dequantised, quantised_keys, quantised_values

LENGTH, HEADS, SIZE = 150, 2, 16
CPU = torch.device("cpu")


def coded_keys(x):
    codes, scales = quantised_keys(x)
    return Codes(codes, scales, torch.arange(x.shape[2]) // BLOCK)


def coded_values(x):
    return Codes(*quantised_values(x), None)


@given(
    tokens=st.integers(1, 2 * BLOCK + 3),
    exponent=st.integers(-30, 30),
    spread=st.integers(0, 12),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_a_number_is_off_by_half_a_scale_at_most(tokens, exponent, spread, seed, dtype):
    if dtype == torch.float16:
        exponent, spread = exponent // 4, min(spread, 4)
    g = torch.Generator().manual_seed(seed)
    channels = torch.randint(-spread, spread + 1, (HEADS, 1, SIZE), generator=g)
    x = (torch.randn(1, HEADS, tokens, SIZE, generator=g) * 2.0 ** (exponent + channels)).to(dtype)
    x[:, :, :, 0] = 0
    for codes in (coded_keys(x), coded_values(x)):
        found = codes.range(0, tokens, torch.float32, CPU).double()
        scales = codes.scales if codes.rows is None else codes.scales[:, :, codes.rows]
        bound = scales.double() / 2 * (1 + 2**-15)  # dequantising rounds the product once, which 127 scales are of
        assert bool(((found - x.double()).abs() <= bound).all())
        assert codes.codes.dtype == torch.int8 and int(codes.codes.min()) >= -127
        assert bool((found[:, :, :, 0] == 0).all())


@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
@pytest.mark.parametrize("quantised", [quantised_keys, quantised_values])
def test_what_no_code_can_stand_for_is_refused(quantised, wrong):
    x = torch.randn(1, HEADS, LENGTH, SIZE)
    x[0, 1, 70, 3] = wrong
    with pytest.raises(CacheError, match="infinite or NaN"):
        quantised(x)


@pytest.fixture
def both():
    """A store whose first tokens are codes, and one that has the same numbers exact."""
    keys, values = torch.randn(1, HEADS, LENGTH, SIZE), torch.randn(1, HEADS, LENGTH, SIZE)
    codes = coded_keys(keys), coded_values(values)
    kind = Kind.of(keys)
    coded, plain = KVStore(window=32), KVStore(window=32)
    coded.adopt([Quantised(kind, one, LENGTH) for one in codes], LENGTH)
    plain.adopt([dequantised(Memory(kind, LENGTH, host=True), one, LENGTH) for one in codes], LENGTH)
    return coded, plain


def alike(coded, plain):
    assert coded.length == plain.length
    for a, b in zip(coded.state(), plain.state(), strict=True):
        assert torch.equal(a, b)
    n = coded.length
    for stream in (0, None):
        for start, stop in [(0, n), (3, 70), (60, 68), (n - 20, n), (n, n), (n - 40, n - 35)]:
            assert torch.equal(coded.take(stream, start, stop), plain.take(stream, start, stop))


def appended(stores, tokens, seed=5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1, HEADS, tokens, SIZE, generator=g)
    for store in stores:
        store.append([x], 2 * x)


def test_tokens_go_behind_codes_and_stay_exact(both):
    coded, plain = both
    assert coded.coded and coded.brought and not coded.offloaded and not plain.brought
    for tokens in (1, 1, 300, 7):
        appended(both, tokens, tokens)
        alike(coded, plain)


def test_tokens_that_a_kernel_writes(both):
    coded, plain = both
    for n in range(70):  # beyond the memory that there is at first
        places, x = [store.reserve_one().place for store in both], torch.randn(1, HEADS, SIZE)
        assert places == [LENGTH + n] * 2
        for tail, whole in zip(coded.tails, plain.allocated, strict=True):
            tail[:, :, n], whole[:, :, LENGTH + n] = x, x
        for store in both:
            store.commit_one()
    alike(coded, plain)
    appended(both, 3)
    alike(coded, plain)
    assert coded.mirror is not None


@pytest.mark.parametrize("drop", [3, 40, 45, 100])
def test_dropping_tokens(both, drop):
    appended(both, 40)
    twin = copy.deepcopy(both[0])
    for store in both:
        store.crop(drop)
    alike(*both)
    appended(both, 25, seed=9)
    alike(*both)
    assert twin.length == LENGTH + 40 and twin.coded  # a copy shares the codes and nothing else
    assert torch.equal(twin.keys[0][:, :, : LENGTH + 40 - drop], both[0].keys[0][:, :, : LENGTH + 40 - drop])


def test_rows_of_a_batch_are_exact(both):
    for store in both:
        store.select(torch.tensor([0, 0]))
    assert not both[0].brought and both[0].mirror is None
    alike(*both)


def test_chosen_tokens(both):
    coded, plain = both
    appended(both, 30)
    tokens = torch.tensor([0, 63, 64, 149, 150, 179, 12, 12])
    for own, exact in zip(coded.lying, plain.lying, strict=True):
        assert isinstance(own, Coded)
        for first in (0, 5):
            part, at = own[:1, :, first:], tokens.clamp(min=first) - first
            for head in range(HEADS):
                assert torch.equal(part.chosen(0, head, at), exact[0, head, first:][at])
            assert torch.equal(part.exact(), exact[:, :, first:]) and part.shape == exact[:, :, first:].shape
