"""Any position map goes with any selection: each pair does what the oracle states of its two halves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from longspan import oracle as exact
from longspan.attend import Attender
from longspan.choosing.blocks import Blocks
from longspan.choosing.chunks import Chunks
from longspan.choosing.tokens import Tokens
from longspan.choosing.top_k_tokens import TopKTokens
from longspan.kernels import cpu
from longspan.methods import ESA
from longspan.methods.base import Method
from longspan.oracle.statements import stated
from longspan.positions import (
    Capped,
    CappedOrFar,
    Chunked,
    FarPosition,
    GroupedBeyond,
    InOrder,
    PositionMap,
    RankedAfterSinks,
    ShiftedBeyond,
    Unchanged,
)
from longspan.selection import Everything, Selection, SinksAndRecent
from longspan_eval.reproduce.ablations import SameChunk
from support import steps
from support.attention import IMPLS, check
from support.cases import ROPES, WINDOW, Case, all_cases, make_qkv
from support.choices import assert_oracle_chooses, assert_tiles

N = 83
SHARES = ("head", "group", "layer")
CHOOSING = [
    *(Chunks(3, 7, 2, share=share, score="bounds", dense_queries=WINDOW) for share in SHARES),
    Chunks(5, 4, 1, first=False, score="mean", dense_queries=WINDOW),
    *(Tokens(2, 6, 9, 4, share=share, dense_queries=WINDOW) for share in SHARES),
    Tokens(0, 5, 4, 7, proximity=3, dense_queries=WINDOW),
    Blocks(2, 6, 3, 2, 4, representatives=2, dense_queries=WINDOW),
    Blocks(0, 5, 4, 3, 5, dense_queries=WINDOW),
    TopKTokens(3, 7, 4, score_at=5),
    TopKTokens(0, 9, 1),
]


def unit_of(selection):
    """What chooses or is chosen does not cross a multiple of this many tokens."""
    return selection.query_chunk if selection.by_query_chunk else selection.size


SEEING = [InOrder(), FarPosition(7), lambda selection: Chunked.over(unit_of(selection), WINDOW), CappedOrFar(11, 5)]
BY_INDEX = [Unchanged(), Capped(5), GroupedBeyond(7, 3), ShiftedBeyond(9, 4), RankedAfterSinks(3, 7), Chunked(7, 4, 20)]


@dataclass(frozen=True, kw_only=True)
class Pair(Method):
    """One selection and one position map."""

    name = "pair"
    paper = "none"
    chosen_by: Selection
    seen_by: PositionMap

    @property
    def selects(self):
        return self.chosen_by in CHOOSING

    @property
    def call_dependent(self):
        return self.chosen_by.by_query_chunk

    def selection(self, window):
        return self.chosen_by

    def positions(self, window):
        return self.seen_by

    def plain_queries(self, window):
        return 0


def pair(selection, positions):
    return Pair(chosen_by=selection, seen_by=positions(selection) if callable(positions) else positions)


# The short run has a selection of each kind with every position map, and the others with one, in turn.
FIRST = {type(selection): n for n, selection in reversed(list(enumerate(CHOOSING)))}
PAIRS = [
    pytest.param(
        Case(method := pair(selection, positions), WINDOW, "pair"),
        id=f"{method.chosen_by}-{method.seen_by}",
        marks=() if n == FIRST[type(selection)] or n % len(SEEING) == m else pytest.mark.long,
    )
    for n, selection in enumerate(CHOOSING)
    for m, positions in enumerate(SEEING)
]


@pytest.mark.parametrize("case", PAIRS)
def test_bands_and_choices_tile_what_is_kept(case, rope):
    assert_oracle_chooses(case, 2, rope)
    assert_tiles(case, rope)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", PAIRS)
def test_equals_the_oracle(case):
    for impl in IMPLS:
        check(case.method.resolve(WINDOW) and case, impl, torch.float32)


@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="it runs in C")
@pytest.mark.parametrize("case", PAIRS)
def test_a_single_token_in_one_call(case):
    qkv = make_qkv(steps.N, batch=2, dtype=torch.float32)
    out, other, _store, _longer, single = steps.both(case, ROPES["half-all"](), qkv)
    steps.assert_alike(out, other)
    fixed = isinstance(case.method.seen_by, FarPosition | CappedOrFar)
    in_c = isinstance(case.method.chosen_by, Chunks | Tokens)
    by_row = isinstance(case.method.chosen_by, Chunks) and isinstance(case.method.seen_by, InOrder)
    assert bool(single) == (in_c and (fixed or by_row))


@pytest.mark.parametrize("positions", [*BY_INDEX, *SEEING[:2], SEEING[3]], ids=str)
@pytest.mark.parametrize("selection", [Everything(), SinksAndRecent(3, 7), SinksAndRecent(0, 4), SameChunk(5)], ids=str)
def test_selections_of_indices(selection, positions):
    method = pair(selection, positions).resolve(WINDOW)
    i, j = torch.arange(N)[:, None], torch.arange(N)[None, :]
    keep = selection.keep(i, j) & (j <= i)
    if hasattr(positions, "rel"):
        rel = positions.rel(i, j)
    else:
        kept = exact.KeptMask(keep, selection.always().border(i[:, 0]), torch.zeros(1, 1, N, N, dtype=torch.bool))
        rel = stated(positions)(positions, kept).expand(1, 1, N, N)[0, 0]
    times = torch.zeros(N, N, dtype=torch.int64)
    for band in method.bands(WINDOW, 0, N):
        inside = (j >= band.keys.lo(i)) & (j < band.keys.hi(i)) & (j <= i)
        distance = (band.q_pos(i) - band.k_pos(j)).expand_as(inside)
        times += inside
        assert torch.equal(distance[inside], rel.expand_as(inside)[inside]), band.name
    assert torch.equal(times, keep.long())


@pytest.mark.parametrize("positions", BY_INDEX[:-1], ids=str)
@pytest.mark.parametrize("selection", [CHOOSING[0], CHOOSING[4], CHOOSING[8], CHOOSING[10]], ids=str)
def test_a_map_that_sees_nothing_chosen_is_refused(selection, positions):
    with pytest.raises(ValueError, match=f"{type(positions).__name__} has no positions for chosen keys.*FarPosition"):
        pair(selection, positions).resolve(WINDOW)


@pytest.mark.parametrize(
    ("selection", "positions"),
    [
        (CHOOSING[0], FarPosition(WINDOW)),
        (CHOOSING[4], CappedOrFar(7, WINDOW + 3)),
        (CHOOSING[10], FarPosition(-1)),
        (CHOOSING[8], Chunked(16, 8, WINDOW + 1)),
        (Chunks(5, 6, 2, dense_queries=WINDOW), InOrder()),
        (TopKTokens(2, WINDOW, 4), InOrder()),
    ],
    ids=str,
)
def test_positions_beyond_the_window_are_refused(selection, positions, monkeypatch):
    """Kernels look positions up in a table that has the window's."""
    # This module's own list, which ``pair`` reads.
    monkeypatch.setattr(f"{__name__}.CHOOSING", [selection])
    with pytest.raises(ValueError, match="sees chosen keys from positions < window is broken by position=-?[0-9]+"):
        pair(selection, positions).resolve(WINDOW)


def test_a_method_that_does_not_say_that_it_chooses_is_refused():
    class Silent(Pair):
        selects = False

    with pytest.raises(
        TypeError, match="Silent: selects is False, but its selection Chunks chooses keys; set selects = True"
    ):
        Silent(chosen_by=CHOOSING[0], seen_by=InOrder()).resolve(WINDOW)


def test_an_attender_of_a_smaller_window_refuses_too():
    method = ESA().resolve(2 * WINDOW)
    assert method.far == WINDOW
    with pytest.raises(ValueError, match="positions < window is broken by position=24, window=24"):
        Attender(method, WINDOW)


def test_no_position_of_a_method_leaves_the_window():
    for case in (param.values[0] for param in all_cases(windows=(24, 7), selecting=True)):
        selection, positions = case.method.selection(case.window), case.method.positions(case.window)
        if (places := selection.places(positions, torch.arange(case.window, 5 * case.window))) is not None:
            assert places.min() >= 0 and places.max() <= positions.reach(selection.always()) < case.window


def paper_of(case, q, k, v, rope):
    """``keep`` and ``rel`` as the paper states both at once, of what it says is chosen."""
    method, n = case.method, q.shape[2]
    own = method.selection(case.window)
    if isinstance(own, Chunks):
        scores = exact.chunk_scores(q, k, v, rope, scale=0.25, length=own.size, score=own.score, share=own.share)
        sizes = {"dense_queries": own.dense_queries, "length": own.size, "local": own.local, "first": own.first}
        lowest = getattr(method, "pick", "best") == "lowest"
        return exact.slots(exact.topk_chunks(scores, count=own.count, lowest=lowest, **sizes), **sizes)
    if isinstance(own, TopKTokens):
        sizes = {"sinks": own.initial, "recent": own.recent}
        chosen = exact.topk_middle(q, k, rope, top_k=own.top_k, distance=own.score_at, **sizes)
        return exact.sinks_recent_and_middle(chosen, cap=method.cap, distance=method.middle_at, **sizes)
    pieces = [(a, z) for a, z in exact.choices.query_chunks_of(own, n) if a >= own.dense_queries]
    sizes = {"initial": own.initial, "local": own.local}
    if isinstance(own, Blocks):
        more = {"block": own.size, "blocks": own.blocks, "representatives": own.representatives}
        every = exact.choices.query_chunks_of(own, n)
        return exact.far_and_near(
            exact.topk_blocks(q, k, rope, every, dense_queries=own.dense_queries, **sizes, **more),
            pieces,
            n,
            far=method.far,
            **sizes,
        )
    combine = getattr(method, "combine", "sum")
    scores = exact.token_scores(q, k, share=own.share, combine=combine, rope=rope, at=own.score_at)
    chosen = exact.topk_tokens(scores, pieces, top_k=own.top_k, proximity=own.proximity, **sizes)
    return exact.far_and_near(chosen, pieces, n, far=method.far, **sizes)


PAPERS = {"longheads": "slots", "esa": "far", "infllm": "far", "lm-infinite": "far"}


@pytest.mark.parametrize(
    "case",
    [
        param
        for param in all_cases(windows=(24, 7), selecting=True)
        if (method := param.values[0].method)
        and getattr(method, "remap", "far") == PAPERS[method.name]
        and getattr(method, "pick", "best") != "random"
    ],
)
def test_the_halves_are_what_the_papers_state_at_once(case, rope):
    q, k, v = make_qkv(N, batch=2)
    rope = case.rope(rope, N)
    keep, rel = case.laid(case.stated(q, k, v, rope, 0.25))
    expected, expected_rel = paper_of(case, q, k, v, rope)
    assert torch.equal(keep, expected)
    assert torch.equal(rel[keep], expected_rel[keep])


class Slipped(InOrder):
    """A map whose positions are not those that it says it reaches."""

    by = 0

    def places(self, i, count, kept):
        return super().places(i, count, kept) + self.by


class SlippedByUnit(Slipped):
    def places(self, i, count, kept):
        return None

    def units(self, i, units, kept):
        return super().places(i, units.shape[-1], kept).expand(*units.shape)


@pytest.mark.parametrize("impl", ["auto", *IMPLS])
@pytest.mark.parametrize("kind", [Slipped, SlippedByUnit])
@pytest.mark.parametrize("by", [-WINDOW, WINDOW])
def test_positions_that_leave_the_window_unsaid_are_refused(impl, kind, by):
    """In torch's operations a negative one would be counted from the end of the table, and other numbers come out."""
    method = pair(CHOOSING[0], type("Off", (kind,), {"by": by})()).resolve(WINDOW)
    q, k, v = make_qkv(N, batch=2, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"outside of the 24 "):
        Attender(method, WINDOW, impl)(q, k, v, ROPES["half-all"](), scale=0.25)
