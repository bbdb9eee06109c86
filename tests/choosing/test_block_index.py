"""InfLLM's representatives are what the oracle states, and do not depend on how the text arrives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longspan import oracle as exact
from longspan.choosing.block_index import BlockIndex
from longspan.choosing.blocks import Blocks
from longspan.errors import CacheError
from support.cases import HEAD, assert_same, make_qkv

SCALE = HEAD**-0.5
WINDOW = 24
BLOCKS = Blocks(initial=2, local=6, size=3, blocks=2, query_chunk=4, dense_queries=WINDOW)
LONG = 900  # several times what the index keeps of its inputs


def new_index(representatives=2):
    return BlockIndex(replace(BLOCKS, representatives=representatives))


def fed(index, qkv, cuts, pads, rope, start=0):
    for a, b in zip([start, *cuts[:-1]], cuts, strict=True):
        index.extend(*(x[:, :, a:b] for x in qkv), pads, rope, SCALE)
    return index


def assert_same_blocks(a, b):
    assert a.finished == b.finished
    for row, done in enumerate(a.finished):
        assert done > 0
        assert_same(a.summaries(row), b.summaries(row))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    "cuts", [range(1, 121), [3, 29, 30, 53, 70, 71, 118, 120], [1, 24, 40, 120], [120]], ids=lambda x: str(len(x))
)
def test_choices_equal_the_oracle_however_the_text_arrives(cuts, kv_heads, any_rope):
    q, k, v = make_qkv(120, batch=2, kv_heads=kv_heads)
    index, pieces, ours = new_index(), [], []
    for a, b in zip([0, *cuts[:-1]], cuts, strict=True):
        index.extend(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], (0, 0), any_rope, SCALE)
        for first, last in BLOCKS.runs(a, b, 120):
            pieces.append((first, last))
            if first >= WINDOW:
                scores = index.scores(q[:, :, first:last], slice(0, 2), BLOCKS.candidates(first), any_rope)
                ours.append(BLOCKS.choose(scores))
    sizes = {"initial": 2, "local": 6, "block": 3, "blocks": 2, "representatives": 2}
    theirs = exact.topk_blocks(q, k, any_rope, pieces, dense_queries=WINDOW, **sizes)
    assert torch.equal(torch.stack(ours, dim=2), theirs[:, :1])


@pytest.mark.parametrize("pads", [(0, 0), (0, 8)], ids=["equal", "padded"])
def test_representatives_do_not_depend_on_how_the_text_arrives(pads, rope):
    qkv = make_qkv(LONG, batch=2)
    whole = fed(new_index(), qkv, [LONG], pads, rope)
    # The window, where the second row's own piece ends too, comes later in the cache's count.
    for cuts in ([*range(4, LONG, 4), LONG], [200, 208, 612, 616, LONG], [LONG - 4, LONG]):
        assert_same_blocks(fed(new_index(), qkv, cuts, pads, rope), whole)


def test_another_piece_gives_other_representatives(rope):
    """So the comparisons above could fail: a token is local for less long where pieces are cut short."""
    qkv = make_qkv(LONG)
    whole, apart = fed(new_index(), qkv, [LONG], (0,), rope), fed(new_index(), qkv, [*range(1, LONG + 1)], (0,), rope)
    count = min(whole.finished + apart.finished)
    assert not torch.allclose(whole.summaries(0)[:, :count], apart.summaries(0)[:, :count])


@pytest.mark.parametrize("dropped", [1, 3, 17, 64])
def test_dropped_tokens_leave_no_trace(dropped, rope):
    qkv, wrong = make_qkv(300, batch=2), tuple(x * 20 for x in make_qkv(64, batch=2, seed=1))
    for kept in range(200, 213):  # every place in a block and in a piece
        straight = fed(new_index(1), qkv, [151, kept, 300], (0, 9), rope)
        winding = fed(new_index(1), qkv, [151, kept], (0, 9), rope)
        # Call by call, as in assisted decoding, so that pieces end where they would not have ended otherwise.
        fed(winding, wrong, sorted({*range(1, min(dropped, 9)), dropped}), (0, 9), rope)
        winding.crop(kept)
        fed(winding, qkv, [300], (0, 9), rope, start=kept)
        assert_same_blocks(winding, straight)


def test_a_padded_row_is_as_if_alone(rope):
    qkv, cuts = make_qkv(200, batch=2), [3, 29, 31, 50, 90, 91, 97, 150, 200]
    for pad in (1, 5, 30):
        together = fed(new_index(1), qkv, cuts, (0, pad), rope)
        alone = tuple(x[1:, :, pad:] for x in qkv)
        alone = fed(new_index(1), alone, [cut - pad for cut in cuts if cut > pad], (0,), rope)
        assert together.finished[1:] == alone.finished
        assert_same(together.summaries(1), alone.summaries(0))


def test_tokens_of_the_call_itself_can_be_dropped(rope):
    qkv = make_qkv(700)
    winding = fed(new_index(), qkv, [300, 700], (0,), rope)
    winding.crop(640)
    fed(winding, tuple(x.roll(1, 2) for x in qkv), [700], (0,), rope, start=640)
    mixed = tuple(torch.cat((x[:, :, :640], x.roll(1, 2)[:, :, 640:]), dim=2) for x in qkv)
    assert_same_blocks(winding, fed(new_index(), mixed, [300, 640, 700], (0,), rope))


def test_dropping_too_many_tokens(rope):
    qkv = make_qkv(LONG)
    index = fed(new_index(), qkv, [400, LONG], (0,), rope)
    with pytest.raises(CacheError, match="dropping 600 tokens makes blocks of 3 tokens local again.*up to 64 can be"):
        index.crop(LONG - 600)
    assert_same_blocks(index, fed(new_index(), qkv, [400, LONG], (0,), rope))
    index.crop(2)  # nothing is left that a block could hold
    fed(index, qkv, [400, LONG], (0,), rope, start=2)
    assert_same_blocks(index, fed(new_index(), qkv, [2, 400, LONG], (0,), rope))


def test_an_index_follows_its_rows(rope):
    qkv, pads = make_qkv(LONG, batch=3), (0, 2, 9)
    index = fed(new_index(), qkv, [LONG - 200], pads, rope)
    index.select(torch.tensor([2, 0]))
    index.select(torch.tensor([0, 0, 1, 1]))
    rows = [2, 2, 0, 0]
    own, own_pads = tuple(x[rows] for x in qkv), [pads[n] for n in rows]
    fed(index, own, [LONG], own_pads, rope, start=LONG - 200)
    assert_same_blocks(index, fed(new_index(), own, [LONG - 200, LONG], own_pads, rope))
    assert index.nbytes > 0
    index.reset()
    assert index.nbytes == 0
    index.select(torch.tensor([]).long())
    assert_same_blocks(fed(index, qkv, [LONG], pads, rope), fed(new_index(), qkv, [LONG], pads, rope))


def test_what_the_index_keeps_of_its_inputs_is_bounded(rope):
    qkv = make_qkv(LONG)
    sizes = [fed(new_index(), qkv, [stop], (0,), rope).tail.nbytes for stop in (LONG // 2, LONG)]
    assert sizes[0] == sizes[1]
    index = fed(new_index(), qkv, range(1, LONG + 1), (0,), rope)
    assert len(index.calls) <= index.tail.room + 1 < LONG / 2
