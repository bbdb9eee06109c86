"""Tokens that come one at a time go through one call of C, and nothing shows it: neither outputs nor what is stored."""

from __future__ import annotations

from copy import copy, deepcopy

import pytest
import torch

from longspan import errors
from longspan.attend import Attender, Observer
from longspan.kernels import cpu
from longspan.memory import KVStore
from longspan.rope import Rope, Table
from support.cases import HEAD, ROPES, all_cases, assert_lse_within_budget, build, every_other, make_qkv
from support.choices import calibration
from support.steps import PROMPT, SCALE, N, assert_alike, attender, both, feed

if cpu.unavailable_reason() is not None:
    pytest.skip(str(cpu.unavailable_reason()), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def reason_of(case, rope):
    return attender(case).decode_reason(rope, 0, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("case", every_other(all_cases(windows=(24, 7))))
def test_one_call_is_what_several_are(case):
    qkv = make_qkv(N, batch=2, dtype=torch.float32)
    out, other, store, longer, single = both(case, ROPES["half-all"](), qkv)
    assert_alike(out, other)
    for a, b in zip(store.state(), longer.state(), strict=True):
        assert_alike(a, b)
    most = N - PROMPT if reason_of(case, ROPES["half-all"]()) is None else 0
    assert single == most


ONE_CALL = [("full", {}), ("dca", {}), ("streaming-llm", {}), ("yarn", {}), ("esa", {}), ("esa", {"share": "head"})]
ONE_CALL += [("longheads", {"chunk_length": 4, "score": score}) for score in ("representation", "mean", "bounds")]
PARTS = [
    ("infllm", {}, "no single-token kernel"),
    ("longheads", {"chunk_length": 4, "score": "token_max"}, "no single-token kernel"),
    ("esa", {"remap": "slots"}, "depend on which keys are chosen"),
    ("esa", {"score_at": 5}, "no single-token kernel"),
    ("dynamic-ntk", {}, "follow the length"),
]


@pytest.mark.parametrize("score", ["mean", "bounds"])
def test_scores_that_differ_by_their_rounding_tie(score):
    """The last of equal chunks are chosen, whichever has a score in the last place larger."""
    q, k, v = make_qkv(N, dtype=torch.float32)
    equal = k[:, :, :4].abs().repeat(1, 1, N // 4 + 1, 1)[:, :, :N]
    k = equal * (1 + 2**-22 * (torch.arange(N) // 4 % 3 == 0))[:, None]
    out, other, *_, single = both(
        build("longheads", {"chunk_length": 4, "score": score}), ROPES["half-all"](), (q.abs(), k, v)
    )
    assert single
    assert_alike(out, other)


@pytest.mark.parametrize(("name", "options"), ONE_CALL)
def test_methods_whose_tokens_take_one_call(name, options):
    assert reason_of(build(name, options), ROPES["half-all"]()) is None


@pytest.mark.parametrize(("name", "options", "why"), PARTS)
def test_a_named_step_runs_or_says_why_not(name, options, why):
    case, rope, qkv = build(name, options), ROPES["half-all"](), make_qkv(60, dtype=torch.float32)
    assert why in reason_of(case, rope)
    runs, store = attender(case, "token"), KVStore()
    runs(*(x[:, :, :50] for x in qkv), rope, scale=SCALE, store=store)
    with pytest.raises(ValueError, match=f"step='token' cannot run here: .*{why}"):
        runs(*(x[:, :, 50:51] for x in qkv), rope, scale=SCALE, store=store)
    assert store.length == 50


def test_what_is_stored_and_given_says_why_not_too():
    case, rope = build("longheads", {"chunk_length": 4}), ROPES["half-all"]()
    qkv, runs = make_qkv(60, dtype=torch.float32), attender(case, "token")
    for stop, padding, given, why in (
        (50, (50 + 1,), torch.float32, "only padding so far"),
        (50, (0,), torch.float64, "float64"),
    ):
        store = KVStore()
        own = [x.to(given) for x in qkv]
        runs(*(x[:, :, :stop] for x in own), rope, scale=SCALE, store=store, padding=padding)
        with pytest.raises(ValueError, match=why):
            runs(*(x[:, :, stop : stop + 1] for x in own), rope, scale=SCALE, store=store, padding=padding)
    store = KVStore()
    runs(*(x[:, :, :49] for x in qkv), rope, scale=SCALE, store=store)
    runs(*(x[:, :, 49:50] for x in qkv), rope, scale=SCALE, store=store)
    with pytest.raises(ValueError, match="not like those of the tokens before"):
        runs(*(x[:, :, 50:51].bfloat16() for x in qkv), rope, scale=SCALE, store=store)
    assert store.length == 50
    with pytest.raises(ValueError, match="step must be one of auto, token, parts"):
        attender(case, "fast")


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        *(pytest.param(rope, "fp32", marks=() if rope.endswith("leading") else pytest.mark.long) for rope in ROPES),
        ("half-all", "bf16"),
        ("interleaved-leading", "fp16"),
    ],
)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dca", {}),
        ("longheads", {"chunk_length": 5, "num_chunks": 4}),
        ("longheads", {"chunk_length": 5, "num_chunks": 4, "share": "layer", "score": "bounds"}),
        ("longheads", {"chunk_length": 5, "num_chunks": 4, "share": "layer", "score": "mean"}),
        ("esa", {"initial": 2, "local": 6, "top_k": 9, "query_chunk": 4}),
    ],
)
def test_layouts_and_dtypes(name, options, layout, dtype):
    case, rope, dtype = build(name, options), ROPES[layout](), DTYPES[dtype]
    qkv = make_qkv(N, batch=3, dtype=dtype, heads=6, kv_heads=2)
    out, other, _store, _longer, single = both(case, rope, qkv)
    assert bool(single) != (rope.table.factor != 1 and name == "esa")  # which scores without that factor
    if dtype == torch.float32:
        assert_alike(out, other)
        return
    # Reduced dtypes round what is stored differently, and what is chosen follows: fp64 decides between the two.
    truth, _ = feed(attender(case), [x.double() for x in qkv], rope, KVStore(), 0, N)
    assert_lse_within_budget(out, other, truth[:, :, PROMPT:])


@pytest.mark.parametrize("options", [{}, {"proximity": 3, "initial": 0}, {"proximity": 0}])
@pytest.mark.parametrize("size", [5, 8, 40])
def test_reduced_scores(options, size):
    case = build("esa", {"initial": 2, "local": 6, "top_k": 9, "query_chunk": 4, **options})
    given = calibration(size, 2 * HEAD, 2)
    qkv = make_qkv(N, batch=2, dtype=torch.float32)
    out, other, store, longer, single = both(case, ROPES["half-all"](), qkv, given=given)
    assert single == (N - PROMPT if size % cpu.LANES == 0 else 0)
    assert_alike(out, other)
    for a, b in zip(store.state(), longer.state(), strict=True):
        assert_alike(a, b)


@pytest.mark.parametrize(
    ("name", "options"), [("dca", {}), ("longheads", {"chunk_length": 3, "score": "bounds"}), ("esa", {})]
)
def test_padding_softcaps_sinks_and_head_sizes(name, options):
    case, rope = build(name, options), ROPES["half-leading"]()
    qkv = make_qkv(N, batch=2, heads=4, kv_heads=1, dv=24, dtype=torch.float32)
    for x in qkv:
        x[:, :, :9] = float("nan")
    own = {"padding": (9, 9), "softcap": 3.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}
    out, other, *_, single = both(case, rope, qkv, **own)
    assert single
    assert_alike(out, other)


@pytest.mark.parametrize("given", [None, 8])
@pytest.mark.parametrize(
    ("name", "options"), [("full", {}), ("dca", {}), ("longheads", {"chunk_length": 4}), ("esa", {})]
)
def test_rows_of_unequal_padding(name, options, given):
    if given and name != "esa":
        pytest.skip("it has no use for a calibration")
    case, pads = build(name, options), (0, 3, 3, 50, 1)
    qkv = make_qkv(N, batch=len(pads), dtype=torch.float32)
    for row, pad in enumerate(pads):
        for x in qkv:
            x[row, :, :pad] = float("nan")
    maps = calibration(given, 2 * HEAD, 2) if given else None
    out, other, _store, _longer, single = both(case, ROPES["half-all"](), qkv, padding=pads, given=maps)
    assert_alike(out, other)
    assert single == N - PROMPT  # of LongHeads one row or another fills a chunk at every token here
    out, *_, none = both(build("dca", {}), ROPES["half-all"](), qkv, prompt=30, padding=pads)
    assert none < N - 30  # a row that is padding yet goes the long way


def test_rows_whose_chunks_fill_at_other_tokens():
    pads, qkv = (0, 2, 5), make_qkv(N, batch=3, dtype=torch.float32)
    case = build("longheads", {"chunk_length": 5, "num_chunks": 4, "score": "bounds"})
    out, other, _store, _longer, single = both(case, ROPES["half-all"](), qkv, padding=pads)
    assert single == N - PROMPT
    assert_alike(out, other)


@pytest.mark.parametrize("name", ["full", "dca", "longheads", "esa"])
def test_from_the_first_token_over_the_windows_border(name):
    qkv = make_qkv(60, dtype=torch.float32)
    out, other, _store, _longer, single = both(
        build(name, {"chunk_length": 4} if name == "longheads" else {}), ROPES["half-all"](), qkv, prompt=0
    )
    assert single
    assert_alike(out, other)


@pytest.mark.parametrize("name", ["dca", "longheads", "esa"])
def test_what_becomes_of_a_store_between_two_tokens(name):
    """Crops, copies, chosen and repeated rows, another prompt: each token reads where its store lies now."""
    case, rope = build(name, {"chunk_length": 4} if name == "longheads" else {}), ROPES["half-all"]()
    qkv = make_qkv(200, batch=2, dtype=torch.float32)
    stores, outs = (KVStore(), KVStore()), []
    for store, runs in zip(stores, (attender(case), attender(case, "parts")), strict=True):
        run = lambda a, b, s, x=qkv, runs=runs: feed(runs, x, rope, s, a, b)[0]  # noqa: E731
        runs(*(x[:, :, :PROMPT] for x in qkv), rope, scale=SCALE, store=store)
        made = [run(110, 120, store)]
        store.crop(6)
        made.append(run(114, 121, store))
        twin = deepcopy(store)
        assert twin.placement is not store.placement
        made += [run(121, 125, twin), run(121, 129, store), run(125, 127, twin)]
        store.select(torch.tensor([1, 1, 0]))
        rows = [x[[1, 1, 0]] for x in qkv]
        made.append(run(129, 133, store, rows))
        store.select(torch.tensor([0, 0, 1, 1, 2, 2]))
        rows = [x.repeat_interleave(2, dim=0) for x in rows]
        made.append(run(133, 137, store, rows))
        made.append(runs(*(x[:, :, 137:180] for x in rows), rope, scale=SCALE, store=store))
        made.append(run(180, 190, store, rows))
        lay = store.placement
        store.reset()
        assert store.placement is not lay
        made.append(run(0, 40, store, rows))
        outs.append(made)
    for a, b in zip(*outs, strict=True):
        assert_alike(a, b)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", ["dca", "longheads", "esa"])
def test_threads(name, threads):
    case, rope = build(name, {"chunk_length": 4} if name == "longheads" else {}), ROPES["half-all"]()
    qkv, before = make_qkv(N, batch=2, dtype=torch.float32), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with cpu.settings(numbers_per_thread=1):  # all of them, however little there is to do
            out, other, *_ = both(case, rope, qkv)
    finally:
        torch.set_num_threads(before)
    assert_alike(out, other)


def test_what_does_not_fit_changes_nothing():
    runs, store, rope = attender(build("longheads", {"chunk_length": 4})), KVStore(), ROPES["half-all"]()
    q, k, v = make_qkv(N, dtype=torch.float32)
    runs(q[:, :, :PROMPT], k[:, :, :PROMPT], v[:, :, :PROMPT], rope, scale=SCALE, store=store)
    feed(runs, (q, k, v), rope, store, PROMPT, 115)
    for bad in ((q, k.bfloat16(), v), (q[:, :3], k[:, :1], v), (q.double(), k.double(), v.double())):
        with pytest.raises((errors.CacheError, RuntimeError, ValueError)):
            runs(*(x[:, :, 115:116] for x in bad), rope, scale=SCALE, store=store)
    assert store.length == 115


@pytest.mark.parametrize(("name", "options"), [one for one in ONE_CALL if one[0] in ("esa", "longheads")])
def test_a_recording_without_scores_has_what_one_call_chose(name, options):
    """Rows of unequal padding; the outputs are those of tokens that nobody records, to the bit."""
    rope, qkv, padding = ROPES["half-all"](), make_qkv(N, batch=3, dtype=torch.float32), (0, 2, 2)
    found = {}
    for kind, step, observer in (
        ("stock", "auto", None),
        ("one call", "auto", Observer(every=False, scores=False)),
        ("parts", "parts", Observer(every=False, scores=False)),
        ("scores", "auto", Observer(every=False, scores=True)),
    ):
        runs, store = attender(build(name, options), step), KVStore()
        runs(*(x[:, :, :PROMPT] for x in qkv), rope, scale=SCALE, store=store, padding=padding)
        runs.observer = observer
        if observer is not None:
            observer.begin()
        found[kind] = *feed(runs, qkv, rope, store, PROMPT, N, padding=padding), observer
    assert torch.equal(found["one call"][0], found["stock"][0]) and found["one call"][1] == found["stock"][1] > 0
    assert found["scores"][1] == 0
    own, parts = (found[kind][2].choices for kind in ("one call", "parts"))
    assert len(own) == len(parts) > 0
    for one, other in zip(own, parts, strict=True):
        assert torch.equal(one.units, other.units)
        assert vars(one) | {"units": 0} == vars(other) | {"units": 0}


def test_a_named_implementation_is_the_one_that_runs():
    case, rope, qkv = build("dca", {}), ROPES["half-all"](), make_qkv(N, dtype=torch.float32)
    for impl, expected in (
        ("auto", N - PROMPT),
        ("compiled", N - PROMPT),
        ("torch", 0),
        ("flash_cpu", 0),
        ("reference", 0),
    ):
        runs, store = Attender(case.method, case.window, impl), KVStore()
        runs(*(x[:, :, :PROMPT] for x in qkv), rope, scale=SCALE, store=store)
        assert feed(runs, qkv, rope, store, PROMPT, N)[1] == expected


def test_layers_of_their_own_angles():
    case, qkv = build("dca", {}), make_qkv(N, dtype=torch.float32)
    slow = Rope(Table(torch.logspace(0, -3, HEAD // 2)), HEAD)
    runs = attender(case)
    for rope in (ROPES["half-all"](), slow):
        store, other = KVStore(), KVStore()
        for run, kept in ((runs, store), (attender(case, "parts"), other)):
            run(*(x[:, :, :PROMPT] for x in qkv), rope, scale=SCALE, store=kept)
        assert_alike(feed(runs, qkv, rope, store, PROMPT, N)[0], feed(run, qkv, rope, other, PROMPT, N)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("name", "options", "given"),
    [
        ("dca", {"length_scale": 0.1}, None),
        ("longheads", {"chunk_length": 5, "num_chunks": 4}, None),
        ("esa", {}, None),
        ("esa", {}, 8),
    ],
)
def test_default_dtypes_change_nothing(name, options, given, dtype):
    case, rope, qkv = build(name, options), ROPES["half-all"](), make_qkv(N, batch=2, dtype=torch.float32)
    maps, outs = calibration(given, 2 * HEAD, 2) if given else None, []
    for default in (torch.float32, dtype):
        runs, store = attender(case, given=maps), KVStore()
        runs(*(x[:, :, :PROMPT] for x in qkv), rope, scale=SCALE, store=store)
        try:
            torch.set_default_dtype(default)
            outs.append(feed(runs, qkv, rope, store, PROMPT, N))
        finally:
            torch.set_default_dtype(torch.float32)
    (out, single), (other, as_many) = outs
    assert single == as_many > 0 and torch.equal(out, other)


@pytest.mark.parametrize("given", [None, 8], ids=["exact", "reduced"])
@pytest.mark.parametrize(("name", "options"), [("esa", {}), ("longheads", {"chunk_length": 4, "score": "bounds"})])
def test_what_derives_from_a_selector_is_not_taken_for_it(name, options, given):
    """C knows the selectors of the library alone: one that chooses otherwise has its own choice."""
    if given and name != "esa":
        pytest.skip("it has no use for a calibration")
    case = build(name, options)
    maps = calibration(given, 2 * HEAD, 2) if given else None
    selector = case.method.selection(case.window).selector(0, rope := ROPES["half-all"](), maps)
    assert selector.in_one_call(rope.table)
    derived = copy(selector)
    derived.__class__ = type("Derived", (type(selector),), {})
    assert not derived.in_one_call(rope.table)
