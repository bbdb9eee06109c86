"""What the host does for a forward on a GPU: few copies, no waits, and the numbers that the CPU's path has."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.attend import Attender, ForwardState, tables
from longspan.rope import Rope, Table
from longspan.store import KVStore
from support.cases import ROPES, all_cases, every_other, inv_freq, make_qkv
from support.steps import SCALE, attender, feed

pytest.importorskip("triton")
from support.host import META, tensors, watched  # noqa: E402

LAYERS, WINDOW = 3, 256
METHODS = {
    "full": longspan.Full(),
    "dca": longspan.DCA(),
    "dca-scaled": longspan.DCA(length_scale=True),
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
