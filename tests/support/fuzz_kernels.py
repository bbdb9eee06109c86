"""Gives every kernel in C inputs of wrong sizes and with indices that lead outside, and counts the outcomes.

    python tests/support/fuzz_kernels.py SEED ROUNDS [--sanitize]

Each is refused by an exception, or runs. Under AddressSanitizer what reads or writes out of bounds ends the process.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))


from longspan.bands import Band, Index, Interval
from longspan.kernels import cpu
from longspan.kernels.banded import Banded, make_plan
from longspan.kernels.banded import compiled as banded
from longspan.kernels.cpu import build
from longspan.kernels.decode import BandRange, ChosenPositions, DecodeKernel, DecodeRows, ScoreSpec
from longspan.kernels.gathered import compiled as gathered
from longspan.kernels.scores import QueryChunks
from longspan.kernels.scores import compiled as scores
from longspan.kernels.topk import compiled as topk
from support.jobs import DTYPES, common, per_chunk, per_row

REFUSED = (ValueError, IndexError, RuntimeError, TypeError)
FAR = (-(2**62), -1, 7, 63, 10**6, 2**62)  # indices and lengths that are somewhere else


def spoil(chance: random.Random, given: Any) -> Any:
    """``given`` with one change.

    A tensor is cut, lengthened, has an axis more or less or other indices, or a number is another one.
    """
    if is_dataclass(given) and not isinstance(given, type):
        name = chance.choice([field.name for field in fields(given) if getattr(given, field.name) is not None])
        if name in ("rope", "scale", "softcap", "derived"):
            return given
        return replace(given, **{name: spoil(chance, getattr(given, name))})
    if isinstance(given, dict) and chance.random() < 0.15:
        return longer(given, chance.randrange(4))
    if isinstance(given, dict):
        name = chance.choice([name for name, value in given.items() if value is not None])
        return given | {name: spoil(chance, given[name])}
    if isinstance(given, (list, tuple)):
        if not given:
            return given
        at = chance.randrange(len(given))
        return type(given)(spoil(chance, x) if n == at else x for n, x in enumerate(given))
    if isinstance(given, bool) or not isinstance(given, (int, Tensor)):
        return given
    if isinstance(given, int):
        return chance.choice((*FAR[1:5], given + 1, given - 1, 0))  # a length that is asked for is given memory
    if given.dtype == torch.int64 and given.numel() and chance.random() < 0.6:
        other = given.clone()
        other.view(-1)[chance.randrange(given.numel())] = chance.choice(FAR)
        return other
    if given.dim() == 0:
        return given
    axis = chance.randrange(given.dim())
    if chance.random() < 0.15 and given.shape[axis]:
        return given.select(axis, 0) if given.dim() > 1 and chance.random() < 0.5 else given.unsqueeze(axis)
    if chance.random() < 0.3 and given.numel():
        return elsewhere(chance, given, axis)
    if chance.random() < 0.5 and given.shape[axis]:
        return given.narrow(axis, 0, chance.randrange(given.shape[axis])).clone()
    return torch.cat((given, given.narrow(axis, 0, min(1, given.shape[axis]))), dim=axis)


def elsewhere(chance: random.Random, x: Tensor, axis: int) -> Tensor:
    """The same shape with its numbers in other places: one for all along an axis, every second one, another order."""
    kind = chance.randrange(3)
    if kind == 0:
        return x.narrow(axis, 0, 1).expand_as(x)
    if kind == 1:
        return x.repeat_interleave(2, dim=axis)[(slice(None),) * axis + (slice(None, None, 2),)]
    return x.transpose(axis, -1).contiguous().transpose(axis, -1)


def longer(given: Any, axis: int) -> Any:
    """All tensors longer by one along an axis, so that they still go with each other but not with all else."""
    if is_dataclass(given) and not isinstance(given, type):
        kept = ("rope", "scale", "softcap", "derived")
        values = {field.name: getattr(given, field.name) for field in fields(given) if field.name not in kept}
        return replace(given, **{name: longer(value, axis) for name, value in values.items()})
    if isinstance(given, dict):
        return {name: longer(value, axis) for name, value in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(longer(x, axis) for x in given)
    if not isinstance(given, Tensor) or given.dim() <= axis or not given.shape[axis]:
        return given
    return torch.cat((given, given.narrow(axis, 0, 1)), dim=axis)


def other_numbers(given: Any) -> Iterator[Any]:
    """``given`` with each of its whole numbers changed, one after the other, to several others.

    What a kernel derived from its input is its own and no input.
    """
    if isinstance(given, dict) or (is_dataclass(given) and not isinstance(given, type)):
        pairs = given.items() if isinstance(given, dict) else [(f.name, getattr(given, f.name)) for f in fields(given)]
        for name, value in pairs:
            for other in other_numbers(value) if name != "derived" else ():
                yield given | {name: other} if isinstance(given, dict) else replace(given, **{name: other})
    elif isinstance(given, (list, tuple)):
        for n, value in enumerate(given):
            for other in other_numbers(value):
                yield type(given)((*given[:n], other, *given[n + 1 :]))
    elif isinstance(given, int) and not isinstance(given, bool):
        yield from (-1000, -1, 0, 3, given + 1, 10**6)


def draw_job(chance: random.Random) -> dict[str, Any]:
    rows, group, batch = chance.choice((1, 2, 5, 40, 200)), chance.choice((1, 2, 3)), chance.choice((1, 2))
    dtype = chance.choice(list(DTYPES.values()))
    return {"rows": rows, "options": {"group": group, "batch": batch, "dtype": dtype}}


def run_banded(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    drawn = draw_job(chance)
    base = common(drawn["rows"], 230, **drawn["options"])
    near = Band("near", Index(), Index(), Interval(lambda i: i - 20, lambda i: i + 1))
    far = Band("far", lambda i: 0 * i + 3, Index(), Interval(lambda i: 0 * i, lambda i: i - 20))
    plan = make_plan([near, far], 30, 30 + drawn["rows"])
    cos_sin = [base["rope"].table(at) for at in plan.q_pos]
    bands = {"q": base["q"], "keys": [base["keys"]] * len(plan.bands), "v": base["v"], "lo": plan.lo, "hi": plan.hi}
    bands = harm({**bands, "cos_sin": cos_sin})
    plan = replace(plan, lo=bands.pop("lo"), hi=bands.pop("hi"), derived={})
    banded.run(Banded(*(bands[name] for name in ("q", "keys", "v")), plan, bands["cos_sin"], base["rope"], scale=1))


def run_units(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    drawn, size = draw_job(chance), chance.choice((1, 3, 16, 32))
    count = chance.choice((1, 3, 5))
    share = chance.choice((2, 2 * drawn["options"]["group"]))
    job = per_row(drawn["rows"], size, count, share=share, own_positions=chance.random() < 0.5, **drawn["options"])
    gathered.run(harm(job))


def run_tokens(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    drawn, runs = draw_job(chance), chance.choice((1, 2, 4))
    gathered.run(harm(per_chunk(drawn["rows"], chance.choice((1, 40)), runs=runs, **drawn["options"])))


def run_into_what_is_there(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    drawn = draw_job(chance)
    job = per_chunk(drawn["rows"], 9, **drawn["options"])
    out, lse = torch.zeros(*job.q.shape[:3], job.v.shape[3], dtype=job.q.dtype), torch.zeros(job.q.shape[:3])
    given = harm({"out": out, "lse": lse, "job": job})
    gathered.run_into(given["out"], given["lse"], given["job"])


def run_representations(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    base = common(24, 24, group=chance.choice((1, 2, 4)))
    q, k, v = (base[name][0].unflatten(1, (3, 8)) for name in ("q", "keys", "v"))
    order = chance.choice((None, torch.arange(16)))
    given = harm({"q": q, "k": k, "v": v, "order": order})
    scores.representations(given["q"], given["k"], given["v"], base["rope"], 0.3, order=given["order"])


def run_products(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    given = harm({"q": torch.randn(2, 3, 4, 16), "keys": torch.randn(2, 3, 70, 16)})
    scores.products(given["q"], given["keys"])


def run_token_scores(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    heads, parts = chance.choice(((4, 1), (2, 1), (1, 2)))
    asked = {"q": torch.randn(2, heads, chance.choice((1, 30, 130)), parts, 16), "keys": torch.randn(2, 2, 300, 16)}
    given = harm(asked)
    scores.token_scores(given["q"], given["keys"], None)


def run_topk(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    rows, n, count = chance.choice(((5, 90, 20), (1, 9001, 70)))
    stops, ranked = chance.choice((None, torch.randint(n - 15, n, (rows,)))), torch.randn(2, rows, n)
    ranked[-1, -1] += chance.choice((0.0, float("nan")))
    given = harm({"scores": ranked, "count": count, "start": 3, "stops": stops, "near": chance.choice((0, 1))})
    topk.topk(given["scores"], given["count"], 0.0, False, given["start"], given["stops"], given["near"])


def run_chunks_of_queries(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    """Scores, choice and attention of three chunks of 20 queries."""
    rows, count, edges = 60, 9, (0, 20, 40, 60)
    job = per_chunk(rows, count, 200, share=1, dtype=torch.float32, edges=edges, runs=chance.choice((1, 2)))
    given = harm({"job": job, "q": torch.randn(1, 1, rows, 2, 16), "edges": list(edges), "stops": [50, 70, 90]})
    chunks = QueryChunks(given["edges"], given["stops"])
    scores.token_scores(given["q"], job.keys, chunks)
    gathered.run(given["job"])


def run_decode(chance: random.Random, harm: Callable[[Any], Any]) -> None:
    room, ahead, heads, kv_heads, width = 96, 8, 4, 2, 16
    rope = common(1, 1)["rope"]
    table, steps = rope.table(torch.arange(50)), torch.arange(ahead)
    cos_sin, kind = rope.table(steps), chance.choice(("none", "bounds", "tokens", "reduced"))
    seen = BandRange(low=steps * 0, high=steps + 57, cos_sin=cos_sin, rotation=0)
    entries, scoring = torch.randn(1, kv_heads, 2 * 24, width), None
    positions = ChosenPositions(0, torch.randint(0, 50, (ahead, 5)), table)
    common_to_all = {"choosing": kv_heads, "first": 1, "count": 5, "positions": positions}
    if kind == "bounds":
        scoring = ScoreSpec(entries=entries, signs=2, sums=True, size=4, last=True, **common_to_all)
    elif kind == "tokens":
        scoring = ScoreSpec(entries=torch.randn(1, kv_heads, room, width), sums=True, size=1, near=1, **common_to_all)
    elif kind == "reduced":
        thetas = torch.randn(8, kv_heads * width), torch.randn(8, kv_heads * width)
        common_to_all |= {"choosing": 1}
        scoring = ScoreSpec(entries=torch.randn(1, 1, room, 8), sums=True, size=1, thetas=thetas, **common_to_all)
    given = harm(
        {
            "keys": [torch.randn(1, kv_heads, room, width)],
            "values": torch.randn(1, kv_heads, room, width),
            "key_cos_sin": [cos_sin],
            "bands": [seen],
            "order": chance.choice((None, torch.arange(width))),
            "kept": [None, torch.randn(1, kv_heads, 30, width), None],
            "scoring": scoring,
            "now": {"at": 60, "row": 3, "kept": 4, "stop": 0 if scoring is None else 20, "seen": 60},
        }
    )
    memory = {name: value for name, value in given.items() if name != "now"}
    kernel = DecodeKernel(rope=rope, heads=heads, scale=0.3, softcap=None, **memory)
    token = [torch.randn(1, n, 1, width) for n in (heads, kv_heads, kv_heads)]
    if DecodeRows([kernel]).takes(*token):
        kernel(*token, **given["now"])


KERNELS = [run_banded, run_units, run_tokens, run_into_what_is_there, run_representations, run_products]
KERNELS += [run_token_scores, run_topk, run_chunks_of_queries, run_decode]


def attempt(
    kernel: Callable[..., None], chance: random.Random, harm: Callable[[Any], Any], count: Counter[str]
) -> None:
    try:
        kernel(chance, harm)
        count["ran"] += 1
    except REFUSED:
        count["refused"] += 1


def fuzz(seed: int, rounds: int) -> dict[str, dict[str, int]]:
    """How often each kernel ran and refused, whole and spoilt."""
    found = {kernel.__name__: Counter({"ran": 0, "refused": 0, "whole": 0}) for kernel in KERNELS}
    for kernel in KERNELS:
        caught: list[Any] = []
        for kind in range(8):  # each with other inputs
            chance = random.Random(f"{seed} {kind} {kernel.__name__}")
            torch.manual_seed(seed)
            kernel(chance, lambda given, caught=caught: caught.append(given) or given)
        for kind, given in enumerate(caught):
            for other in other_numbers(given):
                attempt(
                    kernel,
                    random.Random(f"{seed} {kind} {kernel.__name__}"),
                    lambda _, other=other: other,
                    found[kernel.__name__],
                )
    for n in range(rounds):
        for kernel in KERNELS:
            chance, count = random.Random(f"{seed} {n} {kernel.__name__}"), found[kernel.__name__]
            torch.manual_seed(n)
            if n % 10 == 0:
                kernel(chance, lambda given: given)
                count["whole"] += 1
                continue
            attempt(kernel, chance, lambda given, chance=chance: spoil(chance, given), count)
    return {name: dict(count) for name, count in found.items()}


if __name__ == "__main__":
    if "--sanitize" in sys.argv:  # the runtime of the sanitizers has to be loaded before, by LD_PRELOAD
        build.FLAGS = ("-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
        build.FLAGS += ("-fPIC", "-shared", "-pthread", "-fno-strict-aliasing")
        build.SECONDS = 900  # what is checked everywhere takes long to compile
    if (reason := cpu.unavailable_reason()) is not None:
        sys.exit(reason)
    print(json.dumps(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
