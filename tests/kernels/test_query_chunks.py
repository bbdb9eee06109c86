"""Several chunks of queries in one call: each is what it is by itself, whatever runs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from longspan.kernels import cpu
from longspan.kernels.gathered import gather_into
from longspan.kernels.gpu import tiles
from longspan.kernels.scores import QueryChunks, token_scores
from support.cases import HEAD
from support.jobs import DTYPES, check, per_chunk, random, whole

INTERPRETED = ("triton",) if find_spec("triton") is not None and tiles.interpreting() else ()
IMPLS = ["torch", "reference", *(() if cpu.unavailable_reason() else ("compiled",)), *INTERPRETED]
compiled_here = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")
EDGES = (0, 3, 4, 19, 30)


# heads, key heads, parts
@pytest.mark.parametrize("shape", [(1, 2, 2), (4, 2, 1)])
@pytest.mark.parametrize("impl", IMPLS)
def test_token_scores(impl, shape):
    heads, kv_heads, parts = shape
    q, keys = random(2, heads, 30, parts, 16), random(2, kv_heads, 90, 16, seed=1)
    chunks = QueryChunks(EDGES, (1, 40, 77, 60))
    found = token_scores(q, keys, chunks=chunks, impl=impl)
    assert found.shape == (2, heads, 4, 77)
    for p, (first, last, stop) in enumerate(zip(EDGES[:-1], EDGES[1:], chunks.stops, strict=True)):
        alone = token_scores(q[:, :, first:last], keys[:, :, :stop], impl="reference")
        torch.testing.assert_close(found[:, :, p, :stop].double(), alone, atol=2e-5, rtol=0)


@compiled_here
@pytest.mark.parametrize("threads", [1, 3])
def test_a_chunk_longer_than_what_is_scored_at_once(threads):
    q, keys, before = random(1, 1, 330, 2, 16), random(1, 2, 300, 16, seed=1), torch.get_num_threads()
    chunks = QueryChunks((0, 230, 330), (200, 300))
    torch.set_num_threads(threads)
    try:
        found = token_scores(q, keys, chunks=chunks, impl="compiled")
    finally:
        torch.set_num_threads(before)
    truth = token_scores(q, keys, chunks=chunks, impl="reference")
    torch.testing.assert_close(found[:, :, 0, :200].double(), truth[:, :, 0, :200], atol=2e-5, rtol=0)
    torch.testing.assert_close(found[:, :, 1].double(), truth[:, :, 1], atol=2e-5, rtol=0)


@compiled_here
def test_nan_stays_in_its_chunk():
    for query, chunk in ((3, 0), (119, 0), (150, 1)):  # of those of a chunk that come first, and of the rest
        q, keys = random(1, 1, 230, 1, 16), random(1, 1, 50, 16, seed=1)
        q[0, 0, query, 0, 2] = float("nan")
        found = token_scores(q, keys, chunks=QueryChunks((0, 120, 230), (50, 50)), impl="compiled")
        assert found[0, 0, chunk].isnan().all() and not found[0, 0, 1 - chunk].isnan().any()


@compiled_here
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("runs", [1, 4])
@pytest.mark.parametrize("share", [1, 2, 8])
def test_attention(share, runs, dtype):
    check(per_chunk(30, 21, share=share, group=4, batch=2, runs=runs, dtype=dtype, edges=EDGES))


@compiled_here
@pytest.mark.parametrize(("rows", "edges"), [(2, (0, 1, 2)), (7, (0, 1, 2, 4, 5, 7)), (200, (0, 120, 200))])
def test_few_rows_and_more_than_a_tile(rows, edges):
    check(per_chunk(rows, 21, group=2, edges=edges))


@pytest.mark.parametrize("impl", IMPLS)
def test_merged_into_a_part(impl):
    job = per_chunk(30, 9, batch=2, edges=EDGES)
    out, lse = random(2, 30, 4, HEAD, seed=8).transpose(1, 2), random(2, 4, 30, seed=9)
    merged, truth = (out.clone(), lse.clone()), (out.double(), lse.double())
    gather_into(*merged, job, impl)
    other, other_lse = whole(job, "reference")
    total = torch.logaddexp(truth[1], other_lse)
    out = truth[0] * (truth[1] - total).exp()[..., None] + other * (other_lse - total).exp()[..., None]
    torch.testing.assert_close(merged[0].double(), out, atol=1e-5, rtol=0)
    torch.testing.assert_close(merged[1].double(), total, atol=1e-5, rtol=0)


@pytest.mark.parametrize("impl", [x for x in IMPLS if x in ("compiled", "triton")])
def test_chunks_that_are_out_of_order_or_lie_outside_are_refused(impl):
    q, keys = random(1, 1, 30, 1, 16), random(1, 1, 50, 16, seed=1)
    with pytest.raises(ValueError, match="2 chunks have 3 edges, not 2"):
        QueryChunks((0, 30), (50, 50))
    for edges, stops, reason in (
        ((0, 20, 10), (5, 5), "not in order"),
        ((0, 20, 20), (5, 5), "not in order"),
        ((-1, 20, 30), (5, 5), "outside of the queries"),
        ((0, 20, 40), (5, 5), "outside of the queries"),
        ((0, 20, 30), (0, 5), "outside of the stored ones"),
    ):
        with pytest.raises(ValueError, match=reason):
            token_scores(q, keys, chunks=QueryChunks(edges, stops), impl=impl)
    with pytest.raises(ValueError, match="there are 50 keys and not 51"):
        token_scores(q, keys, chunks=QueryChunks((0, 30), (51,)), impl=impl)
