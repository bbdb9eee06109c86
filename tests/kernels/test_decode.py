"""One token in one call of C against the reference: what is stored, what is chosen, and the output."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longspan.kernels import cpu
from longspan.kernels.decode import BandRange, ChosenPositions, DecodeKernel, DecodeReference, ScoreSpec
from longspan.memory.quantised import Codes
from support.cases import HEAD, ROPES
from support.jobs import DTYPES, choice, random

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")

BATCH, HEADS, KV_HEADS, STORED, AHEAD, PLACES = 2, 6, 2, 96, 8, 50
SCORINGS = ["none", "representations", "means", "bounds", "layer", "group", "tokens", "reduced"]


def spec(kind, dtype, rope):
    """How a token chooses, as the methods do it."""
    if kind == "none":
        return None

    def positions(count):
        at = 20 * torch.randint(0, 3, (AHEAD, count), generator=torch.Generator().manual_seed(5))
        at[:, [0, -1]] = 40  # neighbours of one position are seen in one go, which ends with the row
        return ChosenPositions(1, at, rope.table(torch.arange(PLACES)))

    chunks = {"first": 1, "count": 3, "size": 8, "last": True, "tie": 1e-6, "positions": positions(3)}
    tokens = {"first": 2, "count": 9, "size": 1, "rounds": True, "sums": True, "near": 1, "positions": positions(9)}
    entries = random(BATCH, HEADS, 24, HEAD, dtype=torch.float32, seed=6)
    few = entries[:, :KV_HEADS].repeat_interleave(4, dim=2)
    pairs = entries[:, :KV_HEADS].unflatten(2, (-1, 2)).repeat_interleave(2, dim=2).flatten(2, 3)  # some tie
    return {
        "representations": lambda: ScoreSpec(entries=entries, sums=False, choosing=HEADS, **chunks),
        "means": lambda: ScoreSpec(entries=few[:, :, :24], sums=True, choosing=KV_HEADS, **chunks),
        "bounds": lambda: ScoreSpec(entries=pairs, signs=2, sums=True, choosing=KV_HEADS, **chunks),
        "layer": lambda: ScoreSpec(entries=few.to(dtype), choosing=1, parts=KV_HEADS, **tokens),
        "group": lambda: ScoreSpec(entries=few.to(dtype), choosing=KV_HEADS, **tokens),
        "tokens": lambda: ScoreSpec(entries=few.to(dtype), choosing=HEADS, **(tokens | {"sums": False})),
        "reduced": lambda: ScoreSpec(
            entries=random(BATCH, 1, STORED, 64, dtype=dtype, seed=7),
            choosing=1,
            thetas=tuple(random(64, KV_HEADS * HEAD, dtype=dtype, seed=n) for n in (8, 9)),
            **tokens,
        ),
    }[kind]()


def memory(kind, dtype, rope, dv=HEAD):
    """What a step takes, the same each time."""
    steps = torch.arange(AHEAD)
    kept = torch.zeros(BATCH, HEADS, 30, HEAD, dtype=dtype), torch.zeros(BATCH, KV_HEADS, 30, HEAD, dtype=dtype)
    return {
        "keys": [random(BATCH, KV_HEADS, STORED, HEAD, dtype=dtype, seed=n) for n in (1, 2)],
        "values": random(BATCH, KV_HEADS, STORED, dv, dtype=dtype, seed=3),
        "key_cos_sin": [rope.table(steps + 50), rope.table(steps * 0)],
        "bands": [
            BandRange(low=steps + 40, high=steps + 57, cos_sin=rope.table(steps + 50), rotation=0),
            BandRange(low=steps * 0, high=(steps * 0 + 5), cos_sin=rope.table(steps * 0 + 20), rotation=1),
            BandRange(low=steps, high=steps, cos_sin=rope.table(steps), rotation=1),
        ],
        "rope": rope,
        "order": choice(1, HEAD, of=HEAD)[0].flip(0),
        "heads": HEADS,
        "scale": HEAD**-0.5,
        "softcap": None,
        "kept": [*kept, torch.zeros(BATCH, KV_HEADS, 30, dv, dtype=dtype)],
        "scoring": spec(kind, dtype, rope),
    }


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("kind", SCORINGS)
def test_a_token(kind, dtype):
    check(kind, dtype)


@pytest.mark.parametrize("rope", [name for name, rope in ROPES.items() if rope().norm_q is None])
@pytest.mark.parametrize("kind", ["none", "bounds", "layer"])
def test_layouts(kind, rope):
    if ROPES[rope]().head_dim == HEAD:
        check(kind, torch.float32, rope=rope)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("changes", [{"softcap": 2.0}, {"order": None}, {"kept": [None] * 3}])
def test_options_and_threads(changes, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with cpu.settings(numbers_per_thread=1):
            check("group", torch.float32, **changes)
    finally:
        torch.set_num_threads(before)


def test_values_of_another_size():
    check("means", torch.float32, dv=24)


CODED = 50  # the first tokens, and where a band and a chosen unit go on to exact ones


def in_int8(kind, dtype, rope, dv):
    """``memory`` whose first tokens are in int8: those of keys by blocks of 7 tokens, of values by token."""
    whole, g = memory(kind, dtype, rope, dv), torch.Generator().manual_seed(11)
    codes = []
    for n, x in enumerate((*whole["keys"], whole["values"])):
        own = torch.randint(-127, 128, (BATCH, KV_HEADS, CODED, x.shape[3]), generator=g, dtype=torch.int8)
        rows = None if n == 2 else torch.arange(CODED) // 7
        shape = BATCH, KV_HEADS, CODED if rows is None else 8, 1 if rows is None else x.shape[3]
        codes.append(Codes(own, torch.rand(shape, generator=g) / 64, rows))
    keys, values = ([x[:, :, CODED:].contiguous() for x in whole["keys"]], whole["values"][:, :, CODED:].contiguous())
    return whole | {"keys": keys, "values": values, "codes": codes}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("kind", SCORINGS)
@pytest.mark.parametrize("dv", [HEAD, 24])
def test_tokens_in_int8(kind, dtype, dv):
    check(kind, dtype, dv=dv, make=in_int8)


def test_a_token_in_int8_is_not_written():
    ours = in_int8("none", torch.float32, ROPES["half-all"](), HEAD)
    q, k, v = (random(BATCH, h, 1, HEAD, dtype=torch.float32, seed=1) for h in (HEADS, KV_HEADS, KV_HEADS))
    with pytest.raises(ValueError, match="in int8"):
        DecodeKernel(**ours)(q, k, v, at=CODED - 1, row=0, kept=0, stop=0, seen=1)


def check(kind, dtype, rope="half-all", dv=HEAD, make=memory, **changes):
    rope = ROPES[rope]()
    ours, truth = (make(kind, dtype, rope, dv) | changes for _ in range(2))
    kernel, reference = DecodeKernel(**ours), DecodeReference(**truth)
    eps = torch.finfo(dtype).eps
    units = ours["scoring"] is not None and ours["scoring"].size > 1
    for n, stop in enumerate((0, 6, 7) if units else (0, 20, 21)):
        q, k, v = (
            random(BATCH, h, 1, width, dtype=dtype, seed=20 + 3 * n + i)
            for i, (h, width) in enumerate(((HEADS, HEAD), (KV_HEADS, HEAD), (KV_HEADS, dv)))
        )
        now = {"at": 56 + n, "row": n, "kept": 4 + n, "stop": stop if ours["scoring"] else 0, "seen": 30}
        out, true_out = kernel(q, k, v, **now), reference(q, k, v, **now)
        assert out.dtype == dtype and out.shape == true_out.shape == (BATCH, 1, HEADS, dv)
        if now["stop"]:
            assert torch.equal(kernel.chosen, reference.chosen)
        assert (out - true_out).abs().max() <= 4 * eps * true_out.abs().max() + 1e-5
        assert (kernel.lse - reference.lse).abs().max() <= 1e-5 + 4 * eps * reference.lse.abs().max()
        # Rotations are rounded to the stored dtype once, so neighbours of a number may differ in its last place.
        for name in ("keys", "kept"):
            for mine, other in zip(ours[name], truth[name], strict=True):
                if mine is not None:
                    assert (mine - other).abs().max() <= eps * other.abs().max()
        assert torch.equal(ours["values"], truth["values"])
        if kind == "reduced":
            mine, other = ours["scoring"].entries, truth["scoring"].entries
            assert (mine - other).abs().max() <= 4 * eps * other.abs().max()


@pytest.mark.parametrize("kind", ["group", "reduced"])
def test_a_sum_is_rounded_once(kind):
    """The first of two entries scores more than the other only by a sum that is rounded, and only when it is whole."""
    entries = torch.zeros(BATCH, KV_HEADS, 24, HEAD, dtype=torch.bfloat16)
    entries[:, :, 5, 0] = entries[:, :, 9, 1] = 1
    entries[:, :, 9, 2] = 7 * 2**-10
    q = torch.zeros(BATCH, HEADS, 1, HEAD, dtype=torch.bfloat16)
    q[:, ::3, :, :3] = 1
    changes = {"entries": entries, "count": 1, "near": 0}
    if kind == "group":
        q[:, 1::3, :, 0] = q[:, 2::3, :, 0] = 3 * 2**-10  # 1 + 6 / 1024 in all, which is rounded to 1 + 8 / 1024
    else:  # a reduced query's channels are those of the first head, with the fourth added to the first
        q[:, 0, :, 3] = 6 * 2**-10
        theta = torch.eye(HEAD, KV_HEADS * HEAD, dtype=torch.bfloat16)
        theta[0, 3] = 1
        changes |= {"entries": torch.cat([entries[:, :1]] * 4, dim=2), "thetas": (theta, theta)}
    for make in (DecodeKernel, DecodeReference):
        given = memory(kind, torch.bfloat16, ROPES["half-all"]()) | {"order": None}
        places = given["scoring"].positions
        places = replace(places, positions=places.positions[:, :1].contiguous())
        run = make(**given | {"scoring": replace(given["scoring"], positions=places, **changes)})
        k, v = (random(BATCH, KV_HEADS, 1, HEAD, dtype=torch.bfloat16) for _ in range(2))
        run(q, k, v, at=56, row=0, kept=0, stop=20, seen=9)
        assert (run.chosen == 5).all()


def test_where_a_token_does_not_fit_nothing_is_done():
    given = memory("none", torch.float32, ROPES["half-all"]())
    kernel, before = DecodeKernel(**given), given["keys"][0].clone()
    token = [random(BATCH, h, 1, HEAD) for h in (HEADS, KV_HEADS, KV_HEADS)]
    for changes, reason in (
        ({"at": STORED}, "there is no room for its key"),
        ({"row": AHEAD}, "there are no ranges and tables for the token"),
        ({"kept": 30}, "there is no room to keep its inputs"),
    ):
        with pytest.raises(ValueError, match=reason):
            kernel(*token, **({"at": 56, "row": 0, "kept": 0, "stop": 0, "seen": 9} | changes))
    assert torch.equal(given["keys"][0], before)


@pytest.mark.parametrize(
    ("kind", "given", "scoring", "now", "reason"),
    [
        ("means", {}, {}, {"stop": 3}, "other entries than a token chooses from"),
        ("means", {}, {}, {"stop": 25}, "other entries than a token chooses from"),
        ("means", {}, {}, {"stop": 13}, "an entry stands for keys outside of the stored ones"),
        ("means", {}, {"near": -1}, {}, "the number of nearby scores is negative"),
        ("means", {}, {"positions": {"rotation": 2}}, {}, "an entry stands for keys outside of the stored ones"),
        ("means", {}, {"positions": {"positions": torch.full((8, 3), PLACES)}}, {}, "outside of the table of angles"),
        (
            "means",
            {},
            {"positions": {"positions": torch.zeros(2, 3).long()}},
            {"at": 58, "row": 2},
            "no positions for the token",
        ),
        ("reduced", {}, {"entries": torch.zeros(BATCH, 1, 56, 64)}, {}, "there is no room for its entry"),
        ("none", {"order": torch.arange(1, HEAD + 1)}, {}, {}, "a channel lies outside of a head"),
        ("none", {}, {}, {"at": 55}, "a range of keys ends outside of the stored ones"),
    ],
)
def test_what_lies_just_outside_is_refused(kind, given, scoring, now, reason):
    memories = memory(kind, torch.float32, ROPES["half-all"]()) | given
    if (spec := memories["scoring"]) is not None:
        places = replace(spec.positions, **scoring.get("positions", {}))
        memories["scoring"] = replace(spec, **scoring | {"positions": places})
    kernel = DecodeKernel(**memories)
    token = [random(BATCH, h, 1, HEAD) for h in (HEADS, KV_HEADS, KV_HEADS)]
    with pytest.raises(ValueError, match=reason):
        kernel(*token, **({"at": 56, "row": 0, "kept": 0, "stop": 0 if spec is None else 12, "seen": 9} | now))
