"""Tokens of several texts in one forward: one call of C for all, and each is what it is alone."""

from __future__ import annotations

import pytest
import torch

from longspan.attend import Attender, Observer
from longspan.errors import CacheError
from longspan.kernels import cpu
from longspan.memory import JoinedStores, KVStore
from support.attention import make_qkv
from support.cases import ROPES, build
from support.steps import SCALE, attender, counted

compiled = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")

TOKENS, STEPS = (40, 131, 9, 254, 70), 8  # stored first; some tables end at 128 and 256, and chunks fill
ONE_CALL = [("full", {}), ("dca", {}), ("streaming-llm", {}), ("yarn", {}), ("rerope", {}), ("esa", {})]
ONE_CALL += [("longheads", {"chunk_length": 4}), ("longheads", {"chunk_length": 4, "score": "bounds"})]
PARTS = [("infllm", {}), ("dynamic-ntk", {})]


def texts(dtype=torch.float32):
    """Queries, keys and values of a text for each entry of ``TOKENS``."""
    return [make_qkv(count + STEPS, dtype=dtype, seed=n) for n, count in enumerate(TOKENS)]


def part(qkv, start, stop):
    return [x[:, :, start:stop] for x in qkv]


def begun(runs, qkvs, **options):
    """Stores of the texts' first tokens."""
    stores = []
    for qkv, count in zip(qkvs, TOKENS, strict=True):
        stores.append(KVStore(**options))
        runs(*part(qkv, 0, count), ROPES["half-all"](), scale=SCALE, store=stores[-1])
    return stores


def token(runs, qkvs, stores, rows):
    """Outputs of the next token of these texts together."""
    new = [part(qkvs[row], stores[row].length, stores[row].length + 1) for row in rows]
    qkv = [torch.cat(x) for x in zip(*new, strict=True)]
    return runs(*qkv, ROPES["half-all"](), scale=SCALE, store=JoinedStores([stores[row] for row in rows]))


def alone(runs, qkvs, stores, row):
    at = stores[row].length
    return runs(*part(qkvs[row], at, at + 1), ROPES["half-all"](), scale=SCALE, store=stores[row])


def assert_same(runs, qkvs, stores, others, who):
    """The texts ``who`` of each step together are what they are alone; returns the calls of C of each step."""
    found = []
    for rows in who:
        with counted() as calls:
            together = token(runs, qkvs, stores, rows)
        found.append(calls["decode_attend"])
        for n, row in enumerate(rows):
            assert torch.equal(together[n : n + 1], alone(runs, qkvs, others, row))
    for one, other in zip(stores, others, strict=True):
        assert len(one.state()) == len(other.state())
        assert all(map(torch.equal, one.state(), other.state()))
    return found


CHANGING = [[0, 1, 2, 3, 4]] * 4 + [[3, 1, 0], [3, 1, 0], [4], [1, 2, 4]]


@pytest.mark.parametrize("impl", ["auto", "torch", "reference"])
@pytest.mark.parametrize(("name", "options"), ONE_CALL + PARTS)
def test_each_text_is_what_it_is_alone(name, options, impl):
    case, qkvs = build(name, options), texts()
    runs = Attender(case.method, case.window, impl)
    calls = assert_same(runs, qkvs, begun(runs, qkvs), begun(runs, qkvs), CHANGING)
    if cpu.unavailable_reason() is None:
        assert calls == [int(impl == "auto" and (name, options) in ONE_CALL)] * len(CHANGING)


@compiled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_too(dtype):
    qkvs, runs = texts(dtype), attender(build("longheads", {"chunk_length": 4}))
    assert assert_same(runs, qkvs, begun(runs, qkvs), begun(runs, qkvs), CHANGING) == [1] * len(CHANGING)


@compiled
def test_one_that_c_cannot_take_in_goes_by_itself(tmp_path):
    qkvs, runs = texts(), attender(build("longheads", {"chunk_length": 4}))
    stores, others = begun(runs, qkvs), begun(runs, qkvs)
    disk = KVStore("disk", tmp_path)
    runs(*part(qkvs[1], 0, TOKENS[1]), ROPES["half-all"](), scale=SCALE, store=disk)
    stores[1] = disk
    assert assert_same(runs, qkvs, stores, others, CHANGING[:2]) == [1, 1]


@pytest.mark.parametrize("sinks", [None, torch.linspace(-1, 1, 4)])
def test_padding_is_counted_in_the_text_s_own_store(sinks):
    qkvs, runs, rope = texts(), attender(build("dca", {})), ROPES["half-all"]()
    padding, stores, others = (3, 0, 2, 0, 0), [], []
    for n, count in enumerate(TOKENS):
        for kept in (stores, others):
            kept.append(KVStore())
            runs(*part(qkvs[n], 0, count), rope, scale=SCALE, store=kept[-1], padding=padding[n : n + 1], sinks=sinks)
    new = [part(qkv, count, count + 1) for qkv, count in zip(qkvs, TOKENS, strict=True)]
    qkv = [torch.cat(x) for x in zip(*new, strict=True)]
    out = runs(*qkv, rope, scale=SCALE, store=JoinedStores(stores), padding=padding, sinks=sinks)
    for n, store in enumerate(others):
        own = runs(*new[n], rope, scale=SCALE, store=store, padding=padding[n : n + 1], sinks=sinks)
        assert torch.equal(out[n : n + 1], own)


@pytest.mark.parametrize("step", ["auto", "parts"])
def test_a_recording_has_the_rows_of_the_batch(step):
    qkvs, runs = texts(), attender(build("longheads", {"chunk_length": 4}), step)
    stores, others = begun(runs, qkvs), begun(runs, qkvs)
    runs.observer = observer = Observer(every=False, scores=False)
    observer.begin()
    token(runs, qkvs, stores, [1, 3, 4])
    together = {choice.row: choice for choice in observer.choices}
    assert sorted(together) == [0, 1, 2]
    for n, row in enumerate([1, 3, 4]):
        observer.choices.clear()
        alone(runs, qkvs, others, row)
        (own,) = observer.choices
        assert torch.equal(together[n].units, own.units) and together[n].query == own.query


def test_what_cannot_be_joined_is_refused():
    qkvs, runs, rope = texts(), attender(build("full", {})), ROPES["half-all"]()
    stores = begun(runs, qkvs)
    for tokens in (1, 2):
        with pytest.raises(ValueError, match=f"5 joined stores take in one token each, not {tokens} of 1 rows"):
            runs(*part(qkvs[0], 0, tokens), rope, scale=SCALE, store=JoinedStores(stores))
    with pytest.raises(ValueError, match="step='token' cannot run here"):
        token(attender(build("dynamic-ntk", {}), "token"), qkvs, stores, [0, 1])


def test_a_text_of_another_dtype_fails_and_the_others_have_their_token_or_not():
    qkvs, runs = texts(), attender(build("full", {}))
    stores = begun(runs, qkvs)
    stores[1] = begun(runs, texts(torch.bfloat16))[1]
    with pytest.raises(CacheError):
        token(runs, qkvs, stores, [0, 1, 2])
    assert stores[1].length == TOKENS[1]
    assert all(stores[row].length - TOKENS[row] in (0, 1) for row in (0, 2))
