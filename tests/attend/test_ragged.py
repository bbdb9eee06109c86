"""Rows that begin with unequal padding: one kernel call for all of them, and each row is what it is alone."""

from __future__ import annotations

import pytest
import torch

from longspan.attend import Attender
from longspan.kernels import cpu
from longspan.memory import KVStore
from support.attention import make_qkv
from support.cases import ROPES, build
from support.steps import SCALE, assert_alike, counted

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")

EQUAL, UNEQUAL, N, PROMPT = (0,) * 8, (0, 9, 3, 27, 3, 14, 1, 40), 150, 130
BANDS = ["full", "dca", "rerope", "self-extend", "string", "streaming-llm", "pi", "ntk", "yarn"]
WIDE = {"initial": 2, "local": 6, "top_k": 8, "query_chunk": 8}
CHOOSING = [("longheads", {"chunk_length": 4}), ("longheads", {"chunk_length": 4, "score": "bounds"}), ("esa", WIDE)]


def run(case, padding, **options):
    """Outputs of a prompt and of single tokens, and the kernel calls of each."""
    qkv, store = make_qkv(N, batch=8, dtype=torch.float32), KVStore()
    for row, pad in enumerate(padding):
        for x in qkv:
            x[row, :, :pad] = float("nan")
    runs, rope = Attender(case.method, case.window, **options), ROPES["half-all"]()

    def feed(a, b):
        with counted() as calls:
            own = [x[:, :, a:b] for x in qkv]
            out = runs(*own, rope, scale=SCALE, store=store, padding=padding)
        return out, calls

    return feed(0, PROMPT), [feed(n, n + 1) for n in range(PROMPT, N)]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in BANDS), *CHOOSING])
def test_a_token_of_unequal_rows_is_one_call(name, options):
    _, equal = run(build(name, options), EQUAL)
    _, unequal = run(build(name, options), UNEQUAL)
    for (_, calls), (_, other) in zip(equal, unequal, strict=True):
        own = {n: count for n, count in other.items() if n != "representations"}  # of chunks that fill at this token
        assert own == {n: count for n, count in calls.items() if n != "representations"}


@pytest.mark.parametrize("name", BANDS)
def test_a_prompt_of_unequal_rows_is_one_call(name):
    (_, calls), _ = run(build(name, {}), UNEQUAL)
    assert calls == {"banded_prefill": 1}


@pytest.mark.parametrize(("name", "options"), [*CHOOSING, ("infllm", {})])
def test_prompts_of_unequal_length_choose_together(name, options):
    """A query chunk of all rows is one call; rows drop out as they end, and their last queries choose by themselves."""
    (_, equal), _ = run(build(name, options), EQUAL)
    (_, unequal), _ = run(build(name, options), UNEQUAL)
    assert unequal["banded_prefill"] == equal["banded_prefill"] == 1
    # Of few queries, or of one, there is a kernel of its own.
    of_equal, of_unequal = (sum(c for n, c in x.items() if n.startswith(("units", "tokens"))) for x in (equal, unequal))
    assert of_equal and of_unequal <= of_equal + 2 * len(set(UNEQUAL)) - 1


@pytest.mark.parametrize("impl", ["auto", "torch", "flash_cpu", "reference"])
@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in BANDS), ("infllm", {}), *CHOOSING])
def test_each_row_is_what_it_is_alone(name, options, impl):
    case, qkv = build(name, options), make_qkv(N, batch=8, dtype=torch.float32)
    (prompt, _), tokens = run(case, UNEQUAL, impl=impl)
    out = torch.cat([prompt, *(one for one, _ in tokens)], dim=2)
    for row, pad in enumerate(UNEQUAL):
        runs, store, rope = Attender(case.method, case.window, impl=impl), KVStore(), ROPES["half-all"]()
        own = [x[row : row + 1] for x in qkv]
        alone = [runs(*(x[:, :, pad:PROMPT] for x in own), rope, scale=SCALE, store=store)]
        alone += [runs(*(x[:, :, n : n + 1] for x in own), rope, scale=SCALE, store=store) for n in range(PROMPT, N)]
        assert_alike(out[row : row + 1, :, pad:], torch.cat(alone, dim=2))
        assert not out[row, :, :pad].any()
