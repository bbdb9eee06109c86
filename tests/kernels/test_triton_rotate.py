"""The kernel that rotates rows or lays their channels in pairs is what torch's operations give."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from longspan.kernels.gpu import rotate, tiles
from longspan.rope import Rope, Table, layout, rotation
from support.cases import inv_freq
from support.host import META, watched

if not tiles.interpreting() and not torch.cuda.is_available():
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)

DEVICE = "cpu" if tiles.interpreting() else "cuda"
CHANNELS = [(16, 0, 8), (16, 0, 4), (16, 8, 4), (80, 0, 40), (24, 2, 5)]  # D, first rotated one, r / 2
pytestmark = pytest.mark.usefixtures("poisoned")


def tokens_first(tokens, width, dtype):
    """``[2, 3, T, D]`` in the memory of ``[2, T, 3, D]``, as a model's projection has it."""
    g = torch.Generator().manual_seed(tokens)
    return torch.randn(2, tokens, 3, width, generator=g).to(DEVICE, dtype).transpose(1, 2)


@pytest.mark.parametrize(("width", "start", "half"), CHANNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 37])
def test_rotations(width, start, half, dtype, tokens):
    x = tokens_first(tokens, width, dtype)
    for shape in ((tokens, half), (2, 1, tokens, half), (2, 3, tokens, half)):
        angles = torch.rand(shape, device=DEVICE) * 6
        for order in ("half", "interleaved"):
            out, expected = (torch.empty_like(x), rotation._rotated(x, angles.cos(), angles.sin(), order, start))
            rotate.run(x, (angles.cos(), angles.sin()), out, start, half, layouts=(order, order))
            torch.testing.assert_close(out, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize(("width", "start", "half"), CHANNELS)
@pytest.mark.parametrize("tokens", [1, 37])
def test_pairs(width, start, half, tokens):
    x = tokens_first(tokens, width, torch.bfloat16)
    out = layout.empty_tokens_first(x)
    rotate.run(x, None, out, start, half, layouts=("half", "interleaved"))
    order = layout.interleaved_order(width, start, start + 2 * half).to(DEVICE)
    assert torch.equal(out, x.index_select(-1, order))


def test_what_is_on_a_gpu_takes_it(monkeypatch):
    rope, x = Rope(Table(inv_freq(64).to(META)), 64), torch.empty(1, 2, 5, 64, dtype=torch.bfloat16, device=META)
    with watched(monkeypatch) as host:
        rope.paired().rotate_k(rope.pair(x), *rope.table(slice(0, 5)))
        rope.rotate_q(x, *rope.table(slice(0, 5)))
    assert host.kernels == ["rotated"] * 3
    assert not rotate.runs(torch.empty(1, 1, 1, 16))  # a CPU has its own operations
