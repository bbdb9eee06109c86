"""Several chunks of queries in one launch of Triton's kernels: each is what it is by itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from longspan.kernels.gathered import gather_into
from longspan.kernels.gpu import tiles
from longspan.kernels.scores import QueryChunks, token_scores
from longspan.rope import Rope, Table
from support.cases import HEAD, assert_lse_within_budget, assert_within_budget, inv_freq
from support.jobs import DTYPES, per_chunk, random, whole, wide

pytest.importorskip("triton")

from longspan.kernels.gathered import triton as gathered
from longspan.kernels.gathered import triton_jit_chunk as chunk_jit
from longspan.kernels.scores import triton_jit as scores_jit

pytestmark = pytest.mark.usefixtures("poisoned")

DEVICE = "cpu" if tiles.interpreting() else "cuda"
EDGES, STOPS = (2, 5, 6, 41, 52), (1, 40, 77, 16)


class Launched:
    """A kernel that runs, and the grids that it was launched on."""

    def __init__(self, kernel):
        self.kernel, self.grids = kernel, []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return self.kernel[grid]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "parts"), [(1, 2, 2), (4, 2, 1)])
def test_scores_of_each_chunk(heads, kv_heads, parts, dtype, monkeypatch):
    q = random(2, heads, 55, parts, 16, dtype=dtype).to(DEVICE)
    keys = random(2, kv_heads, 90, 16, dtype=dtype, seed=1).to(DEVICE)
    launched = Launched(scores_jit.token_scores)
    # Counts the launches and passes them on.
    monkeypatch.setattr(scores_jit, "token_scores", launched)
    found = token_scores(q, keys, chunks=QueryChunks(EDGES, STOPS), impl="triton")
    assert len(launched.grids) == 2 and found.shape == (2, heads, 4, 77)
    for p, ((first, last), stop) in enumerate(zip(pairwise(EDGES), STOPS, strict=True)):
        alone = token_scores(q[:, :, first:last], keys[:, :, :stop], impl="triton")
        # On a GPU a chunk by itself has tiles of its own size, of which products are added up otherwise.
        bound = 0 if DEVICE == "cpu" else 1e-4
        torch.testing.assert_close(found[:, :, p, :stop], alone, atol=bound, rtol=0)


def there(job):
    """The job on the device."""
    tensors = {name: getattr(job, name).to(DEVICE) for name in ("q", "keys", "v", "tokens")}
    tables = [
        tuple(x.to(DEVICE) for x in one) for one in (*job.cos_sin, *([job.key_cos_sin] if job.key_cos_sin else []))
    ]
    tensors["ends"] = None if job.ends is None else job.ends.to(DEVICE)
    key_cos_sin = tables.pop() if job.key_cos_sin else None
    return replace(job, cos_sin=tuple(tables), key_cos_sin=key_cos_sin, **tensors)


def check(job, monkeypatch):
    """One launch, held to the reference, and each chunk to what it is by itself."""
    launched = Launched(chunk_jit.by_query_chunk)
    # Counts the launches and passes them on.
    monkeypatch.setattr(chunk_jit, "by_query_chunk", launched)
    out, lse = whole(there(job), "triton")
    assert len(launched.grids) == 1
    truth, true_lse = whole(wide(job), "reference")
    plain, plain_lse = whole(job, "torch")
    assert_within_budget(out.cpu(), plain, truth)
    assert_lse_within_budget(lse.cpu(), plain_lse, true_lse)
    for rows, chunk in there(job).chunks():
        alone, alone_lse = whole(chunk, "triton")
        bound = 64 * torch.finfo(out.dtype).eps * truth.abs().max().item()
        torch.testing.assert_close(out[:, :, rows], alone, atol=bound, rtol=0)
        torch.testing.assert_close(lse[:, :, rows], alone_lse, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("runs", "share"), [(1, 1), (1, 4), (4, 2)])
def test_attention(runs, share, dtype, monkeypatch):
    check(per_chunk(30, 21, share=share, batch=2, runs=runs, dtype=dtype, edges=(0, 3, 4, 19, 30)), monkeypatch)


def test_attention_of_chunks_of_several_tiles_and_parts(monkeypatch):
    check(per_chunk(45, 40, edges=(0, 1, 40, 45)), monkeypatch)
    # The number of parts follows the GPU, of which there may be none.
    monkeypatch.setattr(tiles, "splits", lambda *_: 3)
    check(per_chunk(20, 40, runs=4, edges=(0, 1, 2, 20)), monkeypatch)


def test_attention_with_keys_that_are_rotated_and_queries_that_are_normalised(monkeypatch):
    check(per_chunk(12, 21, rotated=True, edges=(0, 5, 12)), monkeypatch)
    rope = Rope(Table(inv_freq()), HEAD, norm_q=lambda x: torch.nn.functional.normalize(x, dim=-1) * 4)
    check(per_chunk(12, 21, runs=4, rope=rope, edges=(0, 5, 12)), monkeypatch)


def test_attention_merged_into_a_part():
    job = there(per_chunk(30, 9, batch=2, edges=(0, 3, 4, 19, 30)))
    out, lse = random(2, 4, 30, HEAD, seed=8).to(DEVICE), random(2, 4, 30, seed=9).to(DEVICE)
    merged, one_by_one = (out.clone(), lse.clone()), (out.clone(), lse.clone())
    gather_into(*merged, job, "triton")
    for rows, chunk in job.chunks():
        gather_into(*(x[:, :, rows] for x in one_by_one), chunk, "triton")
    for found, alone in zip(merged, one_by_one, strict=True):
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)


def test_edges_are_copied_once_for_layers_that_share_them():
    edges, derived = (0, 5, 12), {}
    first, second = (replace(there(per_chunk(12, 21, edges=edges)), derived=derived) for _ in range(2))
    whole(first, "triton")
    (copied,) = (value for key, (_, value) in derived.items() if key[0] == "edges")
    whole(second, "triton")
    assert copied.tolist() == list(edges) and gathered.edges_on_device(second, edges) is copied


@pytest.mark.parametrize("edges", [(0, 5, 5, 12), (0, 7, 6, 12), (1, 5, 12), (0, 5, 13)])
def test_edges_that_do_not_cut_the_queries_are_refused(edges):
    with pytest.raises(ValueError, match="edges of chunks are not in order from 0 to 12, the queries"):
        whole(there(per_chunk(12, 21, edges=edges)), "triton")
    job = per_chunk(12, 21, edges=(0, 5, 12))
    with pytest.raises(ValueError, match=r"2 chunks of queries have tokens \[1, 2, 1, 21\]"):
        whole(there(replace(job, tokens=job.tokens[:, :, :1])), "triton")
