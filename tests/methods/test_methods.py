"""Methods as values: defaults, parameters that cannot be, and what each one declares."""

from __future__ import annotations

import dataclasses
import math

import pytest

from longspan import rope
from longspan.methods import METHODS
from longspan.rope import DynamicNTK
from support.cases import all_cases, build
from support.variants import IMPOSSIBLE, VARIANTS


@pytest.mark.parametrize(("name", "options", "window", "rule"), IMPOSSIBLE)
def test_impossible_parameters(name, options, window, rule):
    if window is None:
        with pytest.raises(ValueError, match=rule):
            METHODS[name](**options)
    else:
        method = METHODS[name](**options)
        with pytest.raises(ValueError, match=rule):
            method.resolve(window)


@pytest.mark.parametrize(
    "make",
    [
        lambda: METHODS["dca"](window=-5),
        lambda: METHODS["dca"](local_window=100, window=50),
        lambda: METHODS["dca"](chunk_size=10.5),
        lambda: METHODS["dca"](chunk_size="a"),
        lambda: METHODS["rerope"](w=True),
        lambda: METHODS["full"](angles=4),
        lambda: METHODS["pi"](angles=rope.YaRN(factor=2)),
        lambda: rope.PI(scale=math.nan),
        lambda: rope.NTK(scale=math.inf),
        lambda: rope.DynamicNTK(factor=math.nan),
        lambda: rope.YaRN(factor=math.nan),
        lambda: rope.YaRN(factor=4, attention_factor=-3),
    ],
)
def test_values_that_are_no_parameters(make):
    with pytest.raises(ValueError, match=r"window|chunk_size|\bw\b|angles|scale|factor"):
        make()


def test_reaching_tells_only_methods_that_ask():
    assert METHODS["pi"]().reaching(640).resolve(64).angles.scale == 10
    assert METHODS["pi"](angles=rope.PI(scale=2)).reaching(640).resolve(64).angles.scale == 2
    assert METHODS["self-extend"]().reaching(640) == METHODS["self-extend"](target_length=640)
    assert METHODS["self-extend"](group=3).reaching(640) == METHODS["self-extend"](group=3)
    assert METHODS["dca"]().reaching(640) == METHODS["dca"]()


def test_every_method_with_parameters_refuses_some():
    own = {name for name, cls in METHODS.items() if len(dataclasses.fields(cls)) > 1}
    assert own <= {name for name, *_ in IMPOSSIBLE} and own <= set(VARIANTS)


@pytest.mark.parametrize("name", METHODS)
def test_named_and_cited(name):
    cls = METHODS[name]
    assert cls.name == name and cls.paper and cls.__doc__


@pytest.mark.parametrize("window", [5, 64, 4096, 8192, 131072])
@pytest.mark.parametrize("name", METHODS)
def test_defaults_fit_any_window(name, window):
    method = METHODS[name]().resolve(window)
    left = {k for k, v in method.parameters().items() if v is None}
    assert not left - {"target_length", "reduced", *(["far"] if getattr(method, "remap", "far") != "far" else [])}
    assert 0 <= method.exact_queries(window, window) <= window


@pytest.mark.parametrize("case", all_cases())
def test_a_value(case):
    method = case.method
    assert hash(method) == hash(build(case.name, {}).method) or method != build(case.name, {}).method
    assert method == dataclasses.replace(method)
    assert method.resolve(case.window) == method, "resolving twice changes nothing"
    assert list(method.parameters())[-1] == "angles"
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.angles = None


@pytest.mark.parametrize("name", METHODS)
def test_parameters_are_keywords(name):
    with pytest.raises(TypeError):
        METHODS[name](3)


def test_esas_defaults_are_the_papers_at_8192_and_said_not_to_be_at_32k():
    esa = METHODS["esa"]
    at_8k, at_32k = esa().resolve(8192), esa().resolve(32_768)
    assert (at_8k.initial, at_8k.local, at_8k.top_k) == (128, 4096, 2048)
    assert (at_32k.initial, at_32k.local, at_32k.top_k) != (128, 4096, 2048)
    said = " ".join(esa.__doc__.split())
    assert (
        "(128 initial tokens, 4096 local tokens, 2048 chosen ones, for windows of 8k and 32k) are the defaults" in said
    )
    assert at_8k.proximity == 1 and "does not say which it takes" in said


def test_documented_defaults():
    dca = METHODS["dca"]().resolve(64)
    assert (dca.chunk_size, dca.local_window, dca.window) == (48, 16, 64)
    assert METHODS["dca"](chunk_size=40).resolve(64).local_window == 24
    assert METHODS["dca"](window=40).resolve(64).chunk_size == 30
    assert METHODS["rerope"]().resolve(64).w == 32
    assert METHODS["streaming-llm"]().resolve(64).recent == 60
    infinite = METHODS["lm-infinite"]().resolve(64)
    assert (infinite.sinks, infinite.recent, infinite.cap) == (10, 64, 64)
    string = METHODS["string"]().resolve(8192)
    assert (string.shift, string.local) == (2730, 128)


@pytest.mark.parametrize("window", [16, 64, 100, 512])
@pytest.mark.parametrize("times", [0.5, 1, 2, 4, 7.3, 16])
def test_self_extend_chooses_the_smallest_group_that_fits(window, times):
    target = int(times * window)
    method = METHODS["self-extend"](target_length=target).resolve(window)
    near, group = method.neighbors, method.group

    def farthest(g):
        return max((target - 1) // g + near - near // g, near - 1) if target > near else target - 1

    assert near == window // 4
    assert target <= window or farthest(group) <= window - 1
    assert group == 1 or farthest(group - 1) > window - 1
    assert group >= -(-(target - near) // (window - near))


@pytest.mark.parametrize(
    ("name", "sizes", "kept"),
    [
        ("esa", {"initial": 2, "local": 20, "top_k": 9}, 31),
        ("infllm", {"initial": 2, "local": 20, "block": 4, "blocks": 3}, 34),
        ("longheads", {"chunk_length": 4, "num_chunks": 8}, 32),
    ],
)
def test_queries_choose_from_where_dense_says(name, sizes, kept):
    for dense, first in (("window", 64), ("kept", kept), (50, 50)):
        method = METHODS[name](**sizes, dense=dense).resolve(64)
        assert method.selection(64).first_query == method.exact_queries(64, 256) == first
    assert METHODS[name]().dense == "window"  # what is inside the window stays the stock model's, and no slower


def test_what_heads_hold_together():
    llama = [(layer, 32, 32) for layer in range(32)]
    longheads = METHODS["longheads"]
    assert longheads(share="head").resolve(4096).heads_hold(4096, llama) == 16 * 256 * 32 * 32  # section 4.1
    grouped = [(layer, 32, 8) for layer in range(32)]
    assert longheads().resolve(4096).heads_hold(4096, grouped) == 16 * 256 * 8 * 32
    assert (
        METHODS["esa"]().resolve(4096).heads_hold(4096, grouped) == (64 + 2048 + 1024) * 32
    )  # of a layer all choose alike
    some = METHODS["lm-infinite"](middle_top_k=5, from_layer=30).resolve(4096)
    assert some.heads_hold(4096, grouped) == (10 + 5 + 4096) * 32 * 2
    assert METHODS["dca"]().resolve(4096).heads_hold(4096, llama) is None


def test_declared_exact_queries():
    """The numbers of the design, at a window of 64 and four times its length."""
    at = {name: cls().resolve(64).exact_queries(64, 256) for name, cls in METHODS.items()}
    for name in ("full", "streaming-llm", "lm-infinite", "dca"):
        assert at[name] == 64
    for name in ("pi", "ntk", "dynamic-ntk", "yarn"):
        assert at[name] == 0
    assert (at["rerope"], at["self-extend"]) == (33, 16)
    dca = METHODS["dca"]
    assert dca(chunk_size=40, local_window=9).resolve(64).exact_queries(64, 256) == 49
    assert METHODS["dynamic-ntk"]().resolve(64).exact_queries(64, 64) == 64


def test_follows_total():
    assert [name for name in METHODS if METHODS[name]().length_dependent] == ["dynamic-ntk"]
    dca = METHODS["dca"]
    assert dca(length_scale=0.1).length_dependent and dca(angles=DynamicNTK()).length_dependent
    for scale, expected in ((dca.CHUNKLLAMA, 1.243514), (dca.QWEN_1M, 1.513536)):  # (scale · ln 10 + 1)²
        scaled = dca(length_scale=scale).resolve(64)
        assert scaled.query_factor(64, 64) == 1 and scaled.query_factor(64, 65) > 1
        assert scaled.query_factor(64, 640) == pytest.approx(expected)
        assert scaled.exact_queries(64, 64) == 64 and scaled.exact_queries(64, 65) == 0
        assert f"{scale} ln(n / 64) + 1" in scaled.warnings(64)[0]
    unscaled = dca().resolve(64)
    assert unscaled.length_scale == 0 and not unscaled.length_dependent and unscaled.query_factor(64, 640) == 1


def test_warnings():
    assert METHODS["dca"]().resolve(64).warnings(64) == []
    assert "31" in METHODS["dca"](chunk_size=31).resolve(64).warnings(64)[0]
    assert METHODS["string"]().resolve(64).warnings(64)
