"""What the host does for a forward on a GPU: few copies, no waits, and the numbers that the CPU's path has."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.attend import Attender, ForwardState, rows, tables
from longspan.bands import KeyMap
from longspan.memory import KVStore
from longspan.rope import Rope, Table
from support.cases import ROPES, all_cases, every_other, inv_freq, make_qkv
from support.steps import SCALE, attender, feed

pytest.importorskip("triton")
from support.host import META, tensors, watched

LAYERS, WINDOW = 3, 256
METHODS = {
    "full": longspan.Full(),
    "dca": longspan.DCA(),
    "dca-scaled": longspan.DCA(length_scale=0.1),
    "streaming-llm": longspan.StreamingLLM(),
    "longheads": longspan.LongHeads(chunk_length=32, num_chunks=4),
    "longheads-bounds": longspan.LongHeads(chunk_length=32, num_chunks=4, score="bounds"),
}


class Layers:
    """Some layers of one model on ``META``."""

    def __init__(self, name: str, layers: int = LAYERS) -> None:
        self.runs = Attender(METHODS[name].resolve(WINDOW), WINDOW)
        self.rope = Rope(Table(inv_freq(64).to(META)), 64)
        self.stores = [KVStore() for _ in range(layers)]

    def __call__(self, tokens: int) -> None:
        qkv, state = tensors(tokens, 4, 2, 64), ForwardState()
        for n, store in enumerate(self.stores):
            self.runs(*qkv, self.rope, scale=SCALE, store=store, state=state, layer=n)


@pytest.mark.parametrize("name", METHODS)
def test_a_token_copies_nothing_and_waits_for_nothing(name, monkeypatch):
    layers = Layers(name)
    with watched(monkeypatch) as host:
        layers(2 * WINDOW + 3)
        layers(1)  # its tables are those of many tokens
        for given in (host.copies, host.waits, host.kernels):
            given.clear()
        for _ in range(5):
            layers(1)
        assert host.copies == host.waits == []
        assert host.kernels.count("banded") == 5 * LAYERS


@pytest.mark.parametrize("name", ["full", "dca", "dca-scaled", "streaming-llm"])
def test_a_prompt_copies_nothing_that_the_last_one_did(name, monkeypatch):
    """In any parts: their tables are those of the queries' indices."""
    with watched(monkeypatch) as host:
        layers = Layers(name)
        layers(2 * WINDOW)
        assert len(host.copies) <= 4 and host.waits == []  # of the tables alone, whatever the layers are
        host.copies.clear()
        for tokens in (2 * WINDOW, WINDOW + 1, WINDOW - 5):
            for store in layers.stores:
                store.reset()
            layers(tokens)
            if tokens < 2 * WINDOW:
                layers(2 * WINDOW - tokens)
        assert host.copies == host.waits == []


@pytest.mark.parametrize("case", all_cases(windows=(24, 7)))
def test_rows_are_those_of_each_call(case):
    own = attender(case).tables
    if own._rows is None:
        assert own.selection.alone() is not own.selection
        return
    for start, stop in ((0, 30), (0, 7), (5, 6), (20, 61), (0, 90), (60, 90), (88, 90)):
        found, called = own._rows.ranges(start, stop, torch.device("cpu")), own._computed(own.selection, start, stop)
        plan, other = found.plan, called.plan
        assert found.rotations == called.rotations and (plan.start, plan.stop) == (start, stop)
        for a, b in zip((plan.lo, plan.hi, plan.q_pos), (other.lo, other.hi, other.q_pos), strict=True):
            assert len(a) == len(b) and all(map(torch.equal, a, b))
        for name in ("ranges", "positions"):
            assert torch.equal(getattr(plan, name)(torch.device("cpu")), getattr(other, name)(torch.device("cpu")))
        assert plan.reach == other.reach and plan.farthest >= other.farthest
        keys, most = own._rows.key_positions(start, stop, torch.device("cpu"))
        assert torch.equal(keys, torch.stack([to(torch.arange(start, stop)) for to in own.key_maps]))
        assert int(keys.max()) <= most


class _Doubled(KeyMap):
    def __call__(self, j):
        return 2 * j


def test_a_key_may_be_placed_behind_its_index():
    """By a method of another package; on a GPU the table of angles would be read past its end."""
    own = Attender(METHODS["dca"].resolve(WINDOW), WINDOW).tables
    kept = rows.RowTables(lambda n: own._computed(own.selection, 0, n), 3, [_Doubled()])
    positions, most = kept.key_positions(0, 60, torch.device("cpu"))
    assert int(positions.max()) == 118 <= most


def test_rows_are_kept_where_they_are_few(monkeypatch):
    # As many as a small window has.
    monkeypatch.setattr(rows, "MOST", 3 * 100)
    own = Attender(METHODS["dca"].resolve(WINDOW), WINDOW).tables._rows
    assert own.ranges(90, 91, None) is None  # most rows before it would be computed for nothing
    assert own.ranges(0, 60, None) is not None and own.ranges(50, 51, None) is not None
    assert own.ranges(60, 100, None) is not None and own.ranges(0, 101, None) is None


@pytest.mark.parametrize("padding", [(0, 0), (3, 3), (0, 5)])
@pytest.mark.parametrize("case", every_other(all_cases()))
def test_tables_made_ahead_are_those_of_the_token(case, padding, monkeypatch):
    """On the CPU they give the same bits, past the end of the first ones."""
    qkv, rope, outs = make_qkv(136, batch=2, dtype=torch.float32), ROPES["half-trailing"](), []
    for ahead in (False, True):
        # A CPU takes the tables of a device whose memory is its own.
        monkeypatch.setattr(tables, "computes_here", lambda device, ahead=ahead: not ahead)
        runs, store = attender(case, "parts"), KVStore()
        runs(*(x[:, :, :122] for x in qkv), rope, scale=SCALE, store=store, padding=padding)
        outs.append(feed(runs, qkv, rope, store, 122, 136, padding=padding)[0])
    assert torch.equal(*outs)


@pytest.mark.parametrize("pad", [1, 3])
def test_a_padded_prompt_after_another_one(pad, monkeypatch):
    """Its padding comes before the first of the rows that the other one left."""
    qkv, rope, outs = make_qkv(60, dtype=torch.float32), ROPES["half-all"](), []
    for kept in (False, True):
        # A CPU takes the tables of a device whose memory is its own.
        monkeypatch.setattr(tables, "computes_here", lambda device, kept=kept: not kept)
        runs = Attender(METHODS["dca"].resolve(WINDOW), WINDOW, step="parts")
        for _ in range(2):
            out = runs(*qkv, rope, scale=SCALE, store=KVStore(), padding=(pad,))
        outs.append(out)
    assert torch.equal(*outs)


def test_a_position_outside_of_the_window_is_refused_ahead_too(monkeypatch):
    """A kernel would read past the table of angles."""
    # A CPU takes the tables of a device whose memory is its own.
    monkeypatch.setattr(tables, "computes_here", lambda device: False)
    runs = Attender(METHODS["longheads"].resolve(WINDOW), WINDOW, step="parts")
    # No position map of the library leaves the window.
    monkeypatch.setattr(
        type(runs.chooser.positions), "places", lambda self, i, count, kept: torch.full((len(i), count), WINDOW)
    )
    qkv, store = make_qkv(WINDOW + 40, dtype=torch.float32), KVStore()
    rope = ROPES["half-all"]()
    runs(*(x[:, :, :WINDOW] for x in qkv), rope, scale=SCALE, store=store)
    with pytest.raises(ValueError, match="outside of the 256 positions"):
        runs(*(x[:, :, -1:] for x in qkv), rope, scale=SCALE, store=store)
