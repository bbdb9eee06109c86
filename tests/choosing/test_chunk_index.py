"""The representations of chunks do not depend on how the text arrives, and are those of the authors' code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longspan.choosing.chunk_index import ChunkIndex
from longspan.errors import CacheError
from longspan.rope import Rope, Table
from support.cases import inv_freq, make_qkv
from support.choices import SCALE, N

GOLDEN = Path(__file__).parents[1] / "golden" / "longheads_chunks.safetensors"


def test_golden_chunk_representations():
    """The LongHeads authors' released code, on an unrotated q, k, v."""
    golden = load_file(GOLDEN)
    rope = Rope(Table(inv_freq(16)), 16)
    index = ChunkIndex(32, "representation")
    index.extend(golden["q"], golden["k"], golden["v"], [0], rope, 16**-0.5)
    wanted = golden["chunk_representation"]
    assert index.finished == (22,)
    assert (index.summaries(0)[:, : wanted.shape[2]] - wanted[0]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["representation", "mean", "submeans", "bounds", "token_max"])
@pytest.mark.parametrize("pads", [(0, 0), (0, 7)], ids=["equal", "padded"])
def test_summaries_do_not_depend_on_how_the_text_arrives(kind, pads, rope):
    qkv = make_qkv(N, batch=2)
    whole = ChunkIndex(5, kind)
    whole.extend(*qkv, pads, rope, SCALE)
    for cuts in (range(1, N + 1), (3, 4, 31, 32, 64, N), (70, N)):
        index, past = ChunkIndex(5, kind), 0
        for cut in cuts:
            index.extend(*(x[:, :, past:cut] for x in qkv), pads, rope, SCALE)
            past = cut
        for row in range(2):
            assert index.finished[row] == whole.finished[row] == (N - pads[row]) // 5
            assert (index.summaries(row) - whole.summaries(row)).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["representation", "submeans"])
def test_an_index_follows_its_rows(kind, rope):
    qkv = make_qkv(N, batch=3)
    index, picked = ChunkIndex(5, kind), ChunkIndex(5, kind)
    index.extend(*(x[:, :, :72] for x in qkv), (0, 2, 9), rope, SCALE)
    index.select(torch.tensor([2, 0]))
    index.select(torch.tensor([0, 0, 1, 1]))
    rows = [2, 2, 0, 0]
    index.extend(*(x[rows, :, 72:] for x in qkv), [(0, 2, 9)[n] for n in rows], rope, SCALE)
    picked.extend(*(x[rows] for x in qkv), [(0, 2, 9)[n] for n in rows], rope, SCALE)
    assert index.finished == picked.finished
    for row in range(4):
        assert (index.summaries(row) - picked.summaries(row)).abs().max() < 1e-12
    assert index.nbytes > 0
    index.reset()
    assert index.nbytes == 0


def test_dropping_tokens_whose_chunk_cannot_be_refilled(rope):
    index = ChunkIndex(40, "mean")
    index.extend(*make_qkv(600), (0,), rope, SCALE)
    with pytest.raises(CacheError, match="dropping 295 tokens opens a chunk of 40"):
        index.crop(305)
    assert index.tail.stop == 600
    index.crop(320)  # a chunk's border
    assert index.finished == (8,)
