"""Position maps, held to rows that the papers' figures show and to the distances that they must leave alone."""

from __future__ import annotations

import pytest
import torch

from longspan.positions import Capped, CappedOrFar, Chunked, GroupedBeyond, RankedAfterSinks, ShiftedBeyond, Unchanged

# Row i of a map: the relative positions of the keys 0 … i.
ROWS = [
    (Unchanged(), 4, [4, 3, 2, 1, 0]),
    # Dual Chunk Attention, Figure 2: chunks of 6 and 4 local tokens in a window of 10, twelve tokens.
    (Chunked(6, 4, 10), 5, [5, 4, 3, 2, 1, 0]),
    (Chunked(6, 4, 10), 6, [6, 5, 4, 3, 2, 1, 0]),
    (Chunked(6, 4, 10), 9, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
    (Chunked(6, 4, 10), 11, [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0]),
    (Chunked(6, 4, 10), 12, [9, 8, 7, 6, 5, 4, 6, 5, 4, 3, 2, 1, 0]),
    # Self-Extend, Figure 3: groups of 2 beyond 4 neighbours.
    (GroupedBeyond(4, 2), 9, [6, 6, 5, 5, 4, 4, 3, 2, 1, 0]),
    # StreamingLLM: one sink and two recent tokens; keys between are not kept, and count for nothing.
    (RankedAfterSinks(1, 2), 1, [1, 0]),
    (RankedAfterSinks(1, 2), 5, [2, None, None, None, 1, 0]),
    # ReRoPE and LM-Infinite.
    (Capped(3), 6, [3, 3, 3, 3, 2, 1, 0]),
    # STRING: what lies 4 or more back moves up by 4, less 2 that stay local.
    (ShiftedBeyond(4, 2), 7, [5, 4, 3, 2, 3, 2, 1, 0]),
]


@pytest.mark.parametrize(("positions", "query", "row"), ROWS, ids=str)
def test_rows_of_the_papers(positions, query, row):
    found = positions.rel(torch.tensor([[query]]), torch.arange(query + 1)[None])[0].tolist()
    assert [x if y is not None else None for x, y in zip(found, row, strict=True)] == row


@pytest.mark.parametrize(
    ("window", "unit"), [(w, u) for w in (5, 16, 64, 100, 512) for u in (1, 2, 3, 8) if u < w]
)  # methods refuse units that do not fit a window
def test_dual_chunks_over_any_unit_change_nothing_in_the_window(window, unit):
    """Chunks that hold whole units, and every distance inside of the window the true one."""
    positions = Chunked.over(unit, window)
    i, j = torch.arange(4 * window)[:, None], torch.arange(4 * window)[None]
    rel = positions.rel(i, j)
    causal, inside = j <= i, (j <= i) & (i < window)
    assert positions.size % unit == 0 and torch.equal(rel[inside], (i - j)[inside])
    assert rel[causal].min() == 0 and rel[causal].max() <= window - 1


@pytest.mark.parametrize(
    ("positions", "near"),
    [
        (Chunked(12, 4, 16), 4),
        (GroupedBeyond(7, 3), 7),
        (RankedAfterSinks(3, 7), 7),
        (Capped(5), 6),
        (CappedOrFar(5, 9), 6),
        (ShiftedBeyond(9, 4), 9),
    ],
    ids=str,
)
def test_near_keys_keep_their_distance(positions, near):
    """Eq 7 of Dual Chunk Attention: not less than its ``w``, whatever the row; and some key beyond is moved."""
    i, j = torch.arange(60)[:, None], torch.arange(60)[None]
    rel, distance = positions.rel(i, j), i - j
    close = (distance >= 0) & (distance < near)
    assert torch.equal(rel[close], distance[close])
    assert (rel != distance)[(distance >= near) & (i > 40)].any()


@pytest.mark.parametrize("positions", [GroupedBeyond(8, 4), Capped(5), Unchanged()], ids=str)
def test_maps_that_keep_the_order(positions):
    """Of two keys the earlier one is not seen nearer. Chunks, shifted distances and ranks of sinks do not keep this."""
    rel = positions.rel(torch.arange(60)[:, None], torch.arange(60)[None])
    for query in range(60):
        row = rel[query, : query + 1]
        assert (row[:-1] >= row[1:]).all()
