"""A method that chooses is a method, a selection with its selector, a statement, one line and variants; no more."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.attend import Attender
from longspan.cli.methods import describe
from longspan.memory import KVStore
from longspan.methods.parse import parse_method
from support.attention import DTYPES, IMPLS, check
from support.cases import all_cases, assert_same, in_pieces, make_qkv
from support.choices import assert_oracle_chooses, assert_tiles
from support.hf_models import make
from support.toy_method import LargestNorm, added
from support.variants import IMPOSSIBLE, VARIANTS

N = 83

with added():
    CASES = [case for case in all_cases(windows=(24, 9)) if case.values[0].name == LargestNorm.name]

of_each_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def one_of_the_librarys():
    with added():
        yield


def test_its_variants_are_all_that_the_suite_asks_of_a_method():
    rules = [(options, rule) for name, options, _, rule in IMPOSSIBLE if name == LargestNorm.name]
    assert rules and VARIANTS[LargestNorm.name]
    for options, rule in rules:
        with pytest.raises(ValueError, match=rule):
            LargestNorm(**options)


@of_each_case
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_it_chooses_what_is_stated(case, kv_heads, rope):
    assert_oracle_chooses(case, kv_heads, rope)


@of_each_case
def test_its_bands_tile_what_is_kept(case, rope):
    assert_tiles(case, rope)


@of_each_case
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.usefixtures("poisoned")
def test_it_equals_the_oracle(case, dtype):
    for impl in IMPLS:
        check(case, impl, dtype)


@of_each_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_decoding_equals_prefill(case, dtype, rope):
    qkv, attender = make_qkv(N, batch=2, dtype=dtype), Attender(case.method, case.window)
    whole = attender(*qkv, rope, scale=0.25)
    parts = in_pieces(attender, qkv, rope, (7, 31, 60, *range(61, N + 1)), KVStore(), scale=0.25)
    assert_same(parts, whole)


@of_each_case
def test_a_model_runs_it_by_its_name(case):
    text = ",".join(f"{key}={value}" for key, value in case.method.parameters().items() if isinstance(value, int | str))
    assert parse_method(f"{LargestNorm.name}:{text}").resolve(case.window) == case.method
    assert {key for key, value in case.method.parameters().items() if value is None} <= {"far"} - {case.method.remap}
    assert describe(LargestNorm.name, case.window)["parameters"]["top_k"] >= 1
    model = make("llama")
    longspan.extend(model, LargestNorm.name)
    ids = torch.arange(150)[None] % 50
    with torch.no_grad(), longspan.record(model) as trace:
        model(ids)
    assert len(trace) == len(model.model.layers) and trace.at()[0].units.shape[-1] == 16
