"""Every method through every kernel equals the oracle, within the error that a plain run in the same dtype makes."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from longspan.attend import Attender
from longspan.kernels.banded import plan
from longspan.oracle import oracle
from support.attention import DTYPES, IMPLS, SCALE, N, check
from support.cases import ROPES, all_cases, build, in_turn, make_qkv

pytestmark = pytest.mark.usefixtures("poisoned")


KV_HEADS = {"mha": 4, "gqa": 2, "mqa": 1}
GIVEN = {f"{dtype}-{heads}": (DTYPES[dtype], KV_HEADS[heads]) for dtype, heads in product(DTYPES, KV_HEADS)}
# fp16 is rounded as bf16 is, and the kernels know no other difference: of its head layouts one is enough here.
SHORT = {name: given for name, given in GIVEN.items() if not name.startswith("fp16") or name == "fp16-gqa"}
REST = {name: given for name, given in GIVEN.items() if name not in SHORT}
LONG = [pytest.param(*one.values, id=one.id, marks=pytest.mark.long) for one in in_turn(all_cases(), REST)]


@pytest.mark.parametrize(("case", "dtype", "kv_heads"), [*in_turn(all_cases(), SHORT, every=2), *LONG])
def test_equals_the_oracle(case, dtype, kv_heads):
    for impl in IMPLS:
        check(case, impl, dtype, kv_heads=kv_heads)


@pytest.mark.parametrize("rope_name", ["half-all", pytest.param("interleaved-all", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", all_cases(variants=False))
def test_how_inputs_lie_in_memory_does_not_count(case, rope_name):
    inputs, rope = make_qkv(N, batch=2, kv_heads=2, dtype=torch.float32), ROPES[rope_name]()
    for impl in (*IMPLS, "auto"):
        attend = Attender(case.method, case.window, impl)
        expected = attend(*inputs, rope, scale=SCALE)
        for n in range(3):
            spread = [x.mT.contiguous().mT if n == m else x for m, x in enumerate(inputs)]
            found = attend(*spread, rope, scale=SCALE)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4, msg=f"{impl}, {'qkv'[n]}")


REMAPPED = [
    case for case in all_cases(selecting=True) if getattr(case.values[0].method, "remap", "") in ("dca", "slots")
]


@pytest.mark.long
@pytest.mark.parametrize("rope_name", ROPES)
@pytest.mark.parametrize("case", [*all_cases(variants=False), *REMAPPED])
def test_equals_the_oracle_in_every_layout(case, rope_name):
    for impl in IMPLS:
        check(case, impl, torch.float32, rope_name=rope_name)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(dtype, marks=pytest.mark.long) for dtype in (torch.bfloat16, torch.float16))],
    ids=DTYPES,
)
@pytest.mark.parametrize("case", all_cases(variants=False))
def test_sinks_softcap_and_value_size(case, dtype):
    other = build("longheads", {"score": "bounds"}) if case.name == "longheads" else case  # its default takes Dk = Dv
    for impl in IMPLS:
        check(case, impl, dtype, sunk=True)
        check(other, impl, dtype, dv=8)
        check(other, impl, dtype, dv=24)
    for impl in ("torch", "reference", "auto"):
        check(case, impl, dtype, softcap=2.0, sunk=True)


@pytest.mark.parametrize("case", all_cases(variants=False))
def test_blocks_of_few_rows(case, monkeypatch):
    # Small tiles: texts of this size have several.
    monkeypatch.setattr(plan, "TILE", 5)
    for impl in IMPLS:
        check(case, impl, torch.float32)


def test_tiles_of_few_scores(monkeypatch):
    from longspan.kernels.banded import torch_ops

    # A small budget: texts of this size exceed it.
    monkeypatch.setattr(torch_ops, "SCORES_AT_ONCE", 4096)
    for case in (build("dca", {"chunk_size": 7}), build("lm-infinite", {"sinks": 2, "recent": 6, "cap": 11})):
        check(case, "torch", torch.float32)


@pytest.mark.parametrize("case", all_cases(variants=False))
def test_queries_and_keys_whose_products_exceed_fp16(case):
    """Scores are within its range once they are scaled; infinite ones would give NaN."""
    q, k, v = (x.half() for x in make_qkv(60))
    q, k = 150 * q, 150 * k
    rope, found = ROPES["half-all"](), {}
    for impl in ("torch", "reference"):
        found[impl] = Attender(case.method, case.window, impl)(q, k, v, rope, scale=q.shape[-1] ** -0.5).double()
    assert (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT).isinf().any()
    # One key has nearly all of a query's weight, and of a few queries the products as rounded name another.
    assert (found["torch"] - found["reference"]).abs().mean() < 0.05
    assert found["torch"].isfinite().all()


def test_representations_take_values_as_wide_as_keys():
    case = build("longheads", {})
    with pytest.raises(ValueError, match="size 16.*size 8.*score='bounds'"):
        Attender(case.method, case.window)(*make_qkv(30, dv=8), ROPES["half-all"](), scale=SCALE)


@pytest.mark.parametrize("name", ["dca", "longheads", "esa"])
def test_a_named_kernel_runs_or_raises(name):
    case = build(name, {})
    q, k, v = make_qkv(40, dtype=torch.float32)
    with pytest.raises(ValueError, match="flash_cpu.*softcap.*torch"):
        Attender(case.method, case.window, "flash_cpu")(q, k, v, ROPES["half-all"](), scale=1.0, softcap=5.0)
    with pytest.raises(ValueError, match="impl must be one of .*torch"):
        Attender(case.method, case.window, "fast")(q, k, v, ROPES["half-all"](), scale=1.0)


def test_the_oracle_refuses_what_it_does_not_know(rope):
    rope.norm_k = torch.nn.functional.normalize
    with pytest.raises(ValueError, match="normalisation"):
        oracle(*make_qkv(3), torch.ones(3, 3).tril().bool(), torch.zeros(3, 3).long(), rope, scale=1.0)
