"""Scores by which keys are chosen: every implementation against the references in fp64."""

from __future__ import annotations

import pytest
import torch

from longspan.kernels import cpu
from longspan.kernels.gpu import tiles
from longspan.kernels.scores import recorded_token_scores, reference, representations, token_scores
from longspan.rope import Rope, Table
from support.cases import HEAD, ROPES, inv_freq

pytestmark = pytest.mark.usefixtures("poisoned")

DEVICE = "cpu" if tiles.interpreting() else "cuda"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(params=["torch", "compiled", "triton"])
def impl(request):
    if request.param == "compiled" and (reason := cpu.unavailable_reason()) is not None:
        pytest.skip(reason)
    if request.param == "triton":
        pytest.importorskip("triton")
    return request.param


def random(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype).to(DEVICE)


compiled_here = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no compiler here")

# heads, key heads, parts
SHAPES = {"layer": (1, 4, 4), "group": (4, 4, 1), "head": (8, 4, 1), "reduced": (1, 1, 1)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize("shape", SHAPES)
def test_token_scores(impl, shape, tokens, dtype):
    heads, kv_heads, parts = SHAPES[shape]
    for count in (1, 37):
        q = random(2, heads, tokens, parts, HEAD, dtype=DTYPES[dtype], seed=1)
        keys = random(2, kv_heads, count, HEAD, dtype=DTYPES[dtype], seed=2)
        found, truth = token_scores(q, keys, impl=impl), reference.token_scores(q, keys)
        assert found.dtype == torch.float32 and found.shape == (2, heads, count)
        # Plain products round their scores to the dtype; the kernel keeps them in fp32 whatever that is.
        rounding = torch.finfo(DTYPES[dtype]).eps if impl == "torch" else torch.finfo(torch.float32).eps
        largest = parts * q.double().norm(dim=-1).max() * keys.double().norm(dim=-1).max()
        assert (found - truth).abs().max() <= rounding * largest


@pytest.mark.parametrize("shape", SHAPES)
def test_token_scores_up_to_a_stop_on_the_device(shape):
    """Keys that are no candidates are not read: they hold NaN."""
    pytest.importorskip("triton")
    heads, kv_heads, parts = SHAPES[shape]
    q, keys = random(2, heads, 1, parts, HEAD, seed=1), random(2, kv_heads, 70, HEAD, seed=2)
    for start, stop in ((0, 70), (3, 20), (0, 33)):
        own = torch.full_like(keys, torch.nan)
        own[:, :, start:stop] = keys[:, :, start:stop]
        found = recorded_token_scores(q, own, start, torch.tensor([stop], device=DEVICE))
        assert torch.equal(found[..., start:stop], token_scores(q, keys[:, :, start:stop], impl="triton"))
        assert (found[..., :start] == -torch.inf).all() and (found[..., stop:] == -torch.inf).all()


@pytest.mark.parametrize("width", [20, 32, 80])
def test_token_scores_of_strided_keys_of_any_size(impl, width):
    q = random(1, 3, 2, 5, width, seed=3).permute(0, 3, 2, 1, 4)  # [1, 5, 2, 3, D]
    keys = random(1, 40, 3, width, seed=4).transpose(1, 2)[:, :, 3:37]
    q = q[:, :1]
    if impl == "compiled" and width % cpu.LANES:
        with pytest.raises(ValueError, match="compiled cannot run here"):
            token_scores(q, keys, impl=impl)
        return
    assert (token_scores(q, keys, impl=impl) - reference.token_scores(q, keys)).abs().max() < 1e-4


@pytest.mark.skipif(DEVICE != "cpu", reason="memory that is never touched is of a file")
def test_key_heads_that_lie_far_apart(impl, tmp_path):
    """As those of a long text: the last ones lie further behind the first than 32 bits count."""
    apart = 2**30 + 16
    held = torch.from_file(str(tmp_path / "keys"), shared=True, size=2**32 + 64 * HEAD, dtype=torch.float16)
    (tmp_path / "keys").unlink()
    # From the middle, so that an offset that turns negative reads zeros.
    keys = held.as_strided((1, 3, 20, HEAD), (3 * apart, apart, HEAD, 1), 2**31)
    keys.copy_(random(1, 3, 20, HEAD, seed=1))
    for tokens in (1, 6):
        q = random(1, 1, tokens, 3, HEAD, dtype=torch.float16, seed=2)
        assert (token_scores(q, keys, impl=impl) - reference.token_scores(q, keys)).abs().max() < 0.1


def test_a_query_alone_loses_nothing_to_its_best_key(impl):
    """With one query the best key has the score 0 and every other its distance from it."""
    q, keys = random(1, 1, 1, 1, HEAD, seed=5), random(1, 1, 50, HEAD, seed=6)
    found = token_scores(q, keys, impl=impl)[0, 0]
    f = (keys[0, 0] @ q[0, 0, 0, 0]).cpu()
    torch.testing.assert_close(found.cpu(), f - f.max(), atol=1e-5, rtol=0)


def test_token_scores_beyond_what_exp_can_hold(impl):
    q, keys = random(1, 1, 4, 1, HEAD, seed=7) * 1e4, random(1, 1, 20, HEAD, seed=8) * 1e4
    found = token_scores(q, keys, impl=impl)
    assert found.isfinite().all() and (found <= 0).all() and (found == 0).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 5, 16, 33, 70])
def test_representations(impl, size, dtype):
    rope = Rope(Table(inv_freq(HEAD)), HEAD)
    q, k, v = (random(h, 3, size, HEAD, dtype=DTYPES[dtype], seed=h) for h in (6, 2, 3))
    v = v[:2]
    found = representations(q, k, v, rope, 0.4, impl=impl).cpu()
    truth = reference.representations(q, k, v, rope, 0.4, None)
    assert found.shape == (6, 3, HEAD)
    assert (found - truth).abs().max() <= 30 * torch.finfo(DTYPES[dtype]).eps


@pytest.mark.parametrize("name", [name for name, rope in ROPES.items() if rope().norm_q is None])
def test_representations_of_every_layout(impl, name):
    rope = ROPES[name]()
    width = rope.head_dim
    q, k, v = (random(h, 2, 19, width, seed=h) for h in (4, 2, 3))
    v = v[:2]
    truth = reference.representations(q, k, v, rope, 0.3, None)
    assert (representations(q, k, v, rope, 0.3, impl=impl).cpu() - truth).abs().max() < 2e-5
    if rope.order is None:
        return
    # Queries and keys with the channels that rotate together side by side, values as they are.
    paired = representations(
        rope.pair(q), rope.pair(k), v, rope.paired(), 0.3, order=rope.order, impl=impl
    ).cpu()  # fmt: skip
    assert (paired - truth[..., rope.order]).abs().max() < 2e-5


def test_representations_beyond_what_exp_can_hold(impl):
    rope = Rope(Table(inv_freq(HEAD)), HEAD)
    q, k, v = (random(2, 1, 5, HEAD, seed=h) for h in (4, 2, 3))
    truth = reference.representations(q, k, 1000 * v, rope, 1.0, None)
    assert (representations(q, k, 1000 * v, rope, 1.0, impl=impl).cpu() - truth).abs().max() < 1e-2


def test_strided_chunks(impl):
    rope = Rope(Table(inv_freq(HEAD)), HEAD)
    whole = [random(1, 80, h, HEAD, seed=h).transpose(1, 2)[0, :, 7:67].unflatten(1, (4, 15)) for h in (4, 2, 2)]
    truth = reference.representations(*whole, rope, 0.4, None)
    assert (representations(*whole, rope, 0.4, impl=impl).cpu() - truth).abs().max() < 2e-5


def test_a_named_kernel_runs_or_raises(monkeypatch):
    q, keys = random(1, 1, 2, 1, HEAD), random(1, 1, 5, HEAD)
    with pytest.raises(ValueError, match="impl must be one of auto, .*, torch, reference, not 'flash'"):
        token_scores(q, keys, impl="flash")
    # Triton is installed where tests run.
    monkeypatch.setattr(tiles, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"triton cannot run here: .*not installed.*use impl='torch'"):
        token_scores(q, keys, impl="triton")
    monkeypatch.undo()
    norm = torch.nn.functional.normalize
    rope = Rope(Table(inv_freq(HEAD)), HEAD, norm_k=norm)
    x = random(1, 1, 5, HEAD)
    with pytest.raises(ValueError, match="triton cannot run here: the model normalises after it rotates"):
        representations(x, x, x, rope, 1.0, impl="triton")


@compiled_here
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("tokens", [5, 17, 24, 50, 97, 200])
@pytest.mark.parametrize("shape", ["layer", "head"])
def test_token_scores_of_many_queries(shape, tokens, threads):
    """Panels of each width, several tiles and threads, several steps of keys and one that is not whole."""
    heads, kv_heads, parts = SHAPES[shape]
    q, keys = random(1, heads, tokens, parts, 16, seed=1), random(1, kv_heads, 301, 16, seed=2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = token_scores(q, keys, impl="compiled")
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.double(), reference.token_scores(q, keys), atol=2e-5, rtol=0)


@compiled_here
@pytest.mark.parametrize("count", [77, 80])
def test_token_scores_of_nan_are_nan(count):
    """What cannot be compared shows, and does not just fall behind."""
    q, keys = random(1, 2, 30, 1, 16, seed=1), random(1, 2, count, 16, seed=2)
    for wrong in (float("nan"), float("inf")):
        keys[0, 1, 40, 3] = wrong
        found = token_scores(q, keys, impl="compiled")
        assert found[0, 1].isnan().all() and not found[0, 0].isnan().any()


@compiled_here
@pytest.mark.parametrize("tokens", [23, 24])
def test_a_key_at_minus_infinity(tokens):
    q, keys = random(1, 1, tokens, 1, 16, seed=1).abs() + 0.1, random(1, 1, 20, 16, seed=2)
    keys[0, 0, 4, 2] = float("-inf")
    found = token_scores(q, keys, impl="compiled")[0, 0]
    assert found[4] == float("-inf") and found.isfinite().sum() == 19


@compiled_here
def test_what_the_compiled_token_scores_cannot_take():
    with pytest.raises(ValueError, match="queries are in 3 parts and keys in 2"):
        token_scores(random(1, 1, 9, 3, 16), random(1, 2, 20, 16), impl="compiled")
    with pytest.raises(ValueError, match=r"keys has the shape \[1, 2, 16\]"):
        token_scores(random(1, 2, 9, 1, 16), random(1, 2, 16), impl="compiled")
    with pytest.raises(ValueError, match="3 heads are not spread over 2 key heads"):
        token_scores(random(1, 3, 9, 1, 16), random(1, 2, 20, 16), impl="compiled")
