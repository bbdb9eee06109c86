"""Products in the dtype that sums are made in."""

from __future__ import annotations

import pytest
import torch

from longspan import dtypes
from longspan.dtypes import products

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", [0, 1, 5, 6, 13])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 9])
def test_products(rows, keys, dtype, monkeypatch):
    monkeypatch.setattr(dtypes, "_PIECE", 3)
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, n, 8, generator=g, dtype=torch.float64).to(dtype) for n in (rows, keys))
    found, truth = products(q, k), q.double() @ k.double().mT
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.shape == (2, 3, rows, keys)
    # From a few rows on nothing is rounded to a reduced dtype.
    exact = {torch.float64: torch.float64}.get(dtype, torch.float32) if rows >= 4 else dtype
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=40 * torch.finfo(exact).eps)


def test_keys_for_all_heads():
    q, k = torch.randn(2, 5, 9, 8).bfloat16(), torch.randn(2, 1, 7, 8).bfloat16()
    torch.testing.assert_close(products(q, k), q.float() @ k.float().mT)
