"""Plain scores q · k: every implementation against the reference in fp64."""

from __future__ import annotations

import pytest
import torch

from longspan.kernels import cpu, softmax
from longspan.kernels.scores import products, torch_ops
from support.jobs import DTYPES, random

compiled_here = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")


@compiled_here
@pytest.mark.parametrize("queries", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_compiled(dtype, queries):
    for width, count in ((8, 1), (16, 33), (40, 70), (56, 9), (512, 31), (8, 4096), (16, 9001)):
        q, keys = random(2, 3, 2, width, dtype=queries), random(2, 3, count, width, dtype=dtype, seed=1)
        truth = products(q, keys, impl="reference")
        found = products(q, keys, impl="compiled")
        assert found.dtype == torch.float32 and found.shape == truth.shape
        torch.testing.assert_close(found.double(), truth, rtol=0, atol=2e-6 * width)
        strided = random(2, 3, 2 * count, width, dtype=dtype, seed=1)[:, :, ::2]
        truth = products(q, strided[:, :1], impl="reference")
        found = products(q, strided[:, :1].expand(-1, 3, -1, -1), impl="compiled")
        torch.testing.assert_close(found.double(), truth, rtol=0, atol=2e-6 * width)


@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES.values()])
@pytest.mark.parametrize("keys", [0, 1, 5, 6, 13])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 9])
def test_torch_in_blocks_of_keys(rows, keys, dtype):
    q, k = random(2, 3, rows, 8, dtype=dtype), random(2, 3, keys, 8, dtype=dtype, seed=1)
    found, truth = torch_ops.products(q, k, block=3), products(q, k, impl="reference")
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.shape == (2, 3, rows, keys)
    # From a few rows on nothing is rounded to a reduced dtype.
    exact = {torch.float64: torch.float64}.get(dtype, torch.float32) if rows >= 4 else dtype
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=40 * torch.finfo(exact).eps)


def test_keys_for_all_heads():
    q, k = torch.randn(2, 5, 9, 8).bfloat16(), torch.randn(2, 1, 7, 8).bfloat16()
    torch.testing.assert_close(products(q, k, impl="torch"), q.float() @ k.float().mT)


@pytest.mark.parametrize("rows", [1, 9])
def test_products_beyond_the_range_of_fp16(rows):
    q, k = (100 * random(2, 3, n, 128, dtype=torch.float16, seed=n).abs() for n in (rows, 7))
    truth = products(q, k, impl="reference")
    assert truth.min() > torch.finfo(torch.float16).max
    for found in (torch_ops.products(q, k), softmax.products(q, k)):
        torch.testing.assert_close(found.double(), truth, rtol=1e-3, atol=0)


def test_a_named_kernel_runs_or_raises():
    with pytest.raises(ValueError, match="compiled cannot run here: the queries are torch.float64"):
        products(random(1, 1, 1, 8).double(), random(1, 1, 1, 8).double(), impl="compiled")
