"""Query chunks that run in one call of C are what they are one by one, which each method's tests hold to its oracle."""

from __future__ import annotations

import pytest
import torch

from longspan import ESA, InfLLM
from longspan.attend import Attender
from longspan.choosing.blocks import BlockSelector
from longspan.choosing.tokens import TokenSelector
from longspan.kernels import cpu
from longspan.memory import KVStore
from longspan_eval.reproduce.ablations import AblatedESA
from support.cases import HEAD, ROPES, WINDOW, assert_same, make_qkv
from support.choices import calibration

if cpu.unavailable_reason() is not None:
    pytest.skip(str(cpu.unavailable_reason()), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")

SCALE, N = 0.25, 300


@pytest.fixture(autouse=True)
def one_thread():
    """How many pieces run together depends on the threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


OPTIONS = {
    "defaults": {},
    "layer": {"initial": 2, "local": 6, "top_k": 9, "query_chunk": 4},
    "group": {"initial": 2, "local": 6, "top_k": 9, "query_chunk": 5, "share": "group", "proximity": 0},
    "head": {"initial": 1, "local": 5, "top_k": 4, "query_chunk": 7, "share": "head", "proximity": 3},
    "far": {"initial": 3, "query_chunk": 3, "far": 5},
    "scored at a distance": {"initial": 2, "local": 6, "top_k": 9, "query_chunk": 4, "score_at": 5},
}


class Counting:
    """Counts the query chunks that run with others in one call, for as long as it is entered."""

    def __enter__(self):
        self.counts, self.patch = [], pytest.MonkeyPatch()
        for selector in (TokenSelector, BlockSelector):
            self.patch.setattr(selector, "add_many", self.counted(selector.add_many))
        return self

    def counted(self, real):
        """Counts the calls and passes them on: the output is the same either way."""
        return lambda *x: self.counts.append(real(*x)) or self.counts[-1]

    def __exit__(self, *_):
        self.patch.undo()


def run(options, qkv, given=None, one_by_one=False, cuts=(), method=ESA, **call):
    """The output of a prefill in calls that end at ``cuts``, and how many query chunks ran with others at once."""
    runs = Attender(method(**options).resolve(WINDOW), WINDOW, calibration=given)
    runs.chooser.many = not one_by_one
    store, outs = KVStore(), []
    with Counting() as counting:
        for a, b in zip((0, *cuts), (*cuts, N), strict=True):
            part = (x[:, :, a:b] for x in qkv)
            outs.append(runs(*part, ROPES["half-leading"](), scale=SCALE, store=store, **call))
    return torch.cat(outs, dim=2), sum(counting.counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_many_are_what_they_are_one_by_one(options, dtype):
    qkv = make_qkv(N, batch=2, heads=6, kv_heads=2, dtype=dtype)
    out, together = run(options, qkv)
    assert together >= (N - 24) // 32
    assert_same(out, run(options, qkv, one_by_one=True)[0])


BLOCKS = {
    "defaults": {},
    "sizes that divide nothing": {"initial": 3, "local": 7, "block": 5, "blocks": 2, "query_chunk": 3},
    "a query by itself": {"initial": 0, "local": 6, "block": 2, "blocks": 3, "query_chunk": 1, "dense": "kept"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cuts", [(), (24,), (37, 40, 151), (299,)])
@pytest.mark.parametrize("options", BLOCKS.values(), ids=BLOCKS)
def test_blocks(options, cuts, dtype):
    qkv = make_qkv(N, batch=2, heads=6, kv_heads=2, dtype=dtype)
    call = {"method": InfLLM, "cuts": cuts, "padding": (9, 9), "softcap": 3.0}
    out, together = run(options, qkv, **call)
    assert together >= (N - 24) // 32
    assert_same(out, run(options, qkv, one_by_one=True, **call)[0])


def test_blocks_of_rows_with_padding_of_their_own():
    """Each row chooses from its own blocks."""
    qkv = make_qkv(N, batch=2, dtype=torch.float32)
    out, together = run({}, qkv, method=InfLLM, padding=(0, 71))
    assert together
    assert_same(out, run({}, qkv, one_by_one=True, method=InfLLM, padding=(0, 71))[0])


@pytest.mark.parametrize("tokens", [297, 298, 300])
def test_blocks_that_are_alike_are_chosen_as_one_by_one(tokens):
    """To the bit, with a last query chunk of one or two queries too: a recording changes nothing."""
    qkv = [x[:, :, torch.arange(tokens) % 60] for x in make_qkv(60, dtype=torch.bfloat16)]
    found = []
    for many in (True, False):
        runs = Attender(InfLLM(block=4, representatives=2, query_chunk=8).resolve(WINDOW), WINDOW)
        runs.chooser.many = many
        found.append(runs(*qkv, ROPES["half-leading"](), scale=SCALE))
    assert torch.equal(*found)


@pytest.mark.parametrize("share", ["layer", "group"])
def test_those_that_choose_by_the_largest_score_go_one_by_one(share):
    """In one call they would be scored by sums."""
    options = {"initial": 2, "local": 6, "top_k": 9, "query_chunk": 4, "share": share, "combine": "max"}
    qkv = make_qkv(N, dtype=torch.float32)
    (found, together), (alone, _) = (run(options, qkv, one_by_one=x, method=AblatedESA) for x in (False, True))
    assert together == 0 and torch.equal(found, alone)
    assert not torch.equal(found, run({**options, "combine": "sum"}, qkv, method=AblatedESA)[0])


@pytest.mark.parametrize("method", [ESA, InfLLM])
def test_other_implementations_take_them_one_by_one(method):
    qkv, runs = make_qkv(N, dtype=torch.float32), Attender(method().resolve(WINDOW), WINDOW, impl="torch")
    with Counting() as counting:
        runs(*qkv, ROPES["half-all"](), scale=SCALE)
    assert not counting.counts


@pytest.mark.parametrize("size", [8, 40])
def test_reduced_scores(size):
    qkv, given = make_qkv(N, batch=2, dtype=torch.float32), calibration(size, 2 * HEAD, 2)
    out, together = run(OPTIONS["layer"], qkv, given)
    assert together
    assert_same(out, run(OPTIONS["layer"], qkv, given, one_by_one=True)[0])


@pytest.mark.parametrize("cuts", [(), (24,), (37, 40, 151), (299,)])
def test_calls_padding_softcaps_and_sinks(cuts):
    qkv = make_qkv(N, batch=2, heads=4, kv_heads=1, dv=24, dtype=torch.float32)
    for x in qkv:
        x[:, :, :9] = float("nan")
    call = {"padding": (9, 9), "softcap": 3.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]), "cuts": cuts}
    out, together = run(OPTIONS["layer"], qkv, **call)
    assert together
    assert_same(out, run(OPTIONS["layer"], qkv, one_by_one=True, **call)[0])


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("options", ["layer", "group", "head"])
def test_threads(options, threads):
    qkv = make_qkv(N, batch=2, dtype=torch.float32)
    torch.set_num_threads(threads)
    out, together = run(OPTIONS[options], qkv)
    assert together
    assert_same(out, run(OPTIONS[options], qkv, one_by_one=True)[0])


def test_query_chunks_longer_than_what_is_scored_at_once():
    """A query chunk of 130 queries is scored in two parts, whose largest counts."""
    options = {"initial": 2, "local": 3, "top_k": 5, "query_chunk": 130}
    method, qkv, found = ESA(**options).resolve(160), make_qkv(900, dtype=torch.float32), []
    with Counting() as counting:
        for many in (True, False):
            runs = Attender(method, 160)
            runs.chooser.many = many
            found.append(runs(*qkv, ROPES["half-all"](), scale=SCALE))
    assert counting.counts == [6]
    assert_same(*found)


def test_what_is_no_number_shows():
    qkv = make_qkv(N, batch=1, dtype=torch.float32)
    qkv[0][0, 1, 200] = float("nan")
    for out, _ in (run(OPTIONS["layer"], qkv), run(OPTIONS["layer"], qkv, one_by_one=True)):
        assert out[0, :, 200].isnan().any() and not out[0, :, :150].isnan().any()
