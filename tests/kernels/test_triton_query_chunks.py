"""Several chunks of queries in one launch of Triton's kernels: each is what it is by itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from longspan.kernels.gpu import tiles
from longspan.kernels.scores import QueryChunks, token_scores
from support.jobs import DTYPES, random

pytest.importorskip("triton")

from longspan.kernels.scores import triton_jit as scores_jit  # noqa: E402

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
@pytest.mark.parametrize("heads, kv_heads, parts", [(1, 2, 2), (4, 2, 1)])
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
