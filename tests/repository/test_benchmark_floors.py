"""The benchmarks' floors: bytes and operations by hand and by the oracle, and the machine's rates."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from longspan.methods import Full
from longspan.methods.dca import DCA
from support.benchmarks import CHOOSING, SMALL, ours

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import contestants  # noqa: E402
import floors  # noqa: E402
import gates  # noqa: E402


def test_decoding_must_read_every_kept_key_and_value_once_for_each_key_head():
    # 3 layers, keys and values, 100 tokens, 2 key heads of 8 numbers of 4 bytes.
    assert floors.decode_bytes(ours(Full()), 100) == 3 * 2 * 100 * 2 * 8 * 4
    assert floors.decode_bytes(ours(DCA()), 100) == 3 * 2 * 100 * 2 * 8 * 4
    assert floors.decode_bytes(ours(Full(), torch.bfloat16), 100) == 3 * 2 * 100 * 2 * 8 * 2
    assert floors.decode_bytes(contestants.Stock("stock", SMALL, torch.float32), 100) == 3 * 2 * 100 * 2 * 8 * 4


@pytest.mark.parametrize(("name", "vectors"), [("longheads", 4), ("longheads, mean", 2)])
def test_longheads_reads_its_chunks_and_what_stands_for_the_others(name, vectors):
    # The 100th token is in chunk 12, at place 3: 4 whole chunks of 8 and 4 keys. Chunks 1 to 10 are chosen from.
    keys, scored = 4 * 8 + 4, 10 * vectors * 8 * 4
    assert floors.decode_bytes(ours(CHOOSING[name]), 100) == 3 * (2 * keys * 2 * 8 * 4 + scored)


def test_esa_reads_what_it_chose_and_a_reduced_key_of_each_token_between():
    # 4 initial, 12 chosen and 16 local ones and the token itself; 99 - 16 - 4 between.
    kept = 2 * (4 + 12 + 16 + 1) * 2 * 8 * 2
    assert floors.decode_bytes(ours(CHOOSING["esa"], torch.bfloat16, reduced=3), 100) == 3 * (kept + 79 * 3 * 2)
    assert floors.decode_bytes(ours(CHOOSING["esa"], torch.bfloat16), 100) == 3 * (kept + 79 * 2 * 8 * 2)


@pytest.mark.parametrize("method", [Full(), *CHOOSING.values()], ids=["full", *CHOOSING])
def test_inside_the_window_nothing_is_left_out(method):
    assert floors.decode_bytes(ours(method), 64) == floors.decode_bytes(ours(Full()), 64)
    assert floors.prefill_operations(ours(method), 64) == 3 * 4 * 4 * (64 * 65 // 2) * 8


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.parametrize("length", [65, 90, 131])
def test_pairs_are_those_of_the_oracle(name, length, monkeypatch):
    one = ours(CHOOSING[name])
    monkeypatch.setattr(gates, "SHAPE", SMALL)
    # One piece, none decoded.
    monkeypatch.setattr(gates, "TOKENS", length)
    monkeypatch.setattr(gates, "STEPS", 0)
    monkeypatch.setattr(gates, "CUT", 0)
    q, k, v = SMALL.qkv(length, torch.float32)
    keep, _ = gates._layout(one, [q, k, v], None, own_choice=False)
    assert floors.kept_pairs(one, length) == int(keep[0, 0].sum())


def test_operations_of_scoring_by_hand():
    # 70 tokens: queries 64 to 69 are in chunk 8 and choose from chunks 1 to 6, by 2 vectors each of 8 channels.
    base = 4 * 4 * floors.kept_pairs(ours(CHOOSING["longheads, mean"]), 70) * 8
    assert floors.prefill_operations(ours(CHOOSING["longheads, mean"]), 70) == 3 * (base + 2 * 2 * (6 * 6) * 8)
    # Eq 2 is attention inside each of 8 full chunks, for 4 heads.
    eq_2 = 4 * 4 * 8 * 8 * 8 * 8
    assert floors.prefill_operations(ours(CHOOSING["longheads"]), 70) == 3 * (base + 2 * 4 * (6 * 6) * 8 + eq_2)


def test_a_floor_is_the_slowest_that_cannot_be_undercut():
    rates = floors.Rates(bytes=1e9, operations=1e12)
    one = ours(Full())
    assert floors.floor_seconds("decode", one, 99, rates) == floors.decode_bytes(one, 100) / 1e9
    assert floors.floor_seconds("prefill", one, 99, rates) == floors.prefill_operations(one, 99) / 1e12


def test_rates_are_of_the_clock_that_is_given():
    ticks = iter(range(100))  # a second for whatever is run
    rates = floors.measure_rates(torch.float32, rounds=1, copied=1 << 20, now=lambda: next(ticks))
    assert rates == floors.Rates(bytes=2 << 20, operations=2 * floors.MULTIPLIED**3)


def test_rates_are_measured():
    rates = floors.measure_rates(torch.float32, rounds=1, copied=1 << 20)
    assert 0 < rates.bytes < math.inf and 0 < rates.operations < math.inf
