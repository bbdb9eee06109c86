"""Runs as ``longspan tune`` makes them, drawn from the board's samples: what they choose is as good as the best row."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from longspan_eval.figure import wilson
from longspan_eval.tune.candidates import candidates
from longspan_eval.tune.choice import choose
from longspan_eval.tune.halving import Outcome, standing
from longspan_eval.tune.run import MOST

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
RESULTS = BENCHMARKS / "results" / "real"
sys.path.insert(0, str(BENCHMARKS))

from real_table import CUT, parts  # noqa: E402
from samples import ARCHIVES, read  # noqa: E402

if not list(RESULTS.glob(ARCHIVES)):
    pytest.skip("this is an sdist, which leaves the samples out", allow_module_level=True)


def board():
    """Each row's outcomes by text: SmolLM2, facts, 4,096 tokens, a declared window of 1,024."""
    rows = defaultdict(dict)
    for key, one in read(RESULTS).items():
        kind, window, length, number, row, model = parts(key)
        if (kind, window, length, model) == ("facts", 1024, 4096, "smollm2") and row not in ("stock", CUT):
            found = tuple(one.figures[f"found{n}"] for n in range(10))
            rows[row][number] = Outcome(found, one.loss, 1.0, one.figures["read_cpu"] / one.tokens, error=one.error)
    return {row: own for row, own in rows.items() if len(own) > 3}  # others have only begun


def share(row):
    right = [value for one in row.values() for value in one.found]
    return sum(right) / len(right), wilson(sum(right), len(right))


@pytest.mark.parametrize("readings", [12, 16, 24, 36])
def test_the_choice_is_within_the_interval_of_the_best(readings):
    rows = board()
    best = max(rows, key=lambda row: share(rows[row])[0])
    low, high = share(rows[best])[1]
    texts = [n for n in range(10) if all(n in row for row in rows.values())]
    names = [label for spec in candidates(1024) if (label := spec.label) in rows]
    assert best in names and len(names) > 7 and len(texts) > 3
    rng, good, draws = random.Random(0), 0, 300
    for _ in range(draws):
        drawn = [rng.choice(texts) for _ in range(MOST)]
        done = {}
        while (place := standing(len(names), done, readings, MOST).next) is not None:
            done[place] = rows[names[place[0]]][drawn[place[1]]]
        stands = standing(len(names), done, readings, MOST)
        good += low <= share(rows[names[choose(stands, done).row]])[0] <= high
    assert good / draws >= 0.9
