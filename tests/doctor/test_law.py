"""Laws fitted to timings that are made up, so that what they should say is known."""

from __future__ import annotations

import pytest
import torch

from longspan.doctor.law import Law, fit
from longspan.doctor.measuring import PREFILL_CHUNK, Point, Run, ladder, rates
from longspan.doctor.work import Counter, LayerShape, Work
from longspan.methods import METHODS
from support.cases import build

WINDOW = 512
LAYERS = tuple(LayerShape(n, 6, 2, 32, 32, 1, 4) for n in range(4))  # a small model's
WEIGHTS = 1_600_000
PREFILL = Law(call=5e-3, weights=4e-11, attended=3.5e-11, scored=4.5e-11)
DECODE = Law(call=0.0, weights=5e-10, attended=2.5e-10, scored=3e-10)


def counter(name):
    return Counter(build(name, {}, WINDOW).method, WINDOW, LAYERS, weights=WEIGHTS)


def run_of(counts, length, noise):
    """A run of a model that takes exactly what the two laws say, but for the noise."""
    g = torch.Generator().manual_seed(0)

    def noisy(seconds):
        return seconds * (1 + noise * (2 * torch.rand((), generator=g).item() - 1))

    prefill_chunks = [Point(a, b, noisy(PREFILL.seconds(counts.call(a, b)))) for a, b in ladder(length)]
    tokens = [Point(b, b + 1, noisy(DECODE.seconds(counts.token(b)))) for _, b in ladder(length)]
    return Run("cpu", tuple(prefill_chunks), tuple(tokens), 1, 1.0)


@pytest.mark.parametrize("multiple", [8, 16, 32, 64])
@pytest.mark.parametrize("name", METHODS)
def test_lengths_that_were_not_measured(name, multiple):
    counts, length = counter(name), multiple * WINDOW
    prefill, token = (PREFILL.seconds(counts.prompt(length, PREFILL_CHUNK)), DECODE.seconds(counts.token(length)))
    for noise, allowed in ((0.0, 0.1), (0.05, 0.25)):
        laws = rates(run_of(counts, min(length // 2, 8192), noise), counts)
        assert laws.prefill.seconds(counts.prompt(length, PREFILL_CHUNK)) == pytest.approx(prefill, rel=allowed)
        assert laws.decode.seconds(counts.token(length)) == pytest.approx(token, rel=allowed)


def test_the_test_is_of_a_length_that_was_left_out():
    counts = counter("dca")
    run = run_of(counts, 8192, 0.0)
    found = rates(run, counts)
    assert (found.fitted_to, found.tested_at) == (4096, 8192)
    assert abs(found.prefill_error) < 0.02 and abs(found.decode_error) < 0.05
    slow = [Point(p.start, p.stop, p.seconds * (2 if p.stop > 4096 else 1)) for p in run.prefill_chunks]
    later = rates(Run("cpu", tuple(slow), run.tokens, 1, 1.0), counts)
    assert later.prefill_error < -0.3  # what it was not fitted to has doubled


def test_a_short_run_is_not_tested_and_says_what_it_did_not_see():
    counts = counter("longheads")
    found = rates(run_of(counts, 300, 0.0), counts)
    assert found.tested_at is None and found.prefill_error is None and found.unscored
    assert not rates(run_of(counts, 4096, 0.0), counts).unscored


def test_one_measurement_is_taken_for_all_kinds_of_work():
    law = fit([Work(1, 100, 50, 0)], [3.0])
    assert law.weights == pytest.approx(law.attended, rel=0.01) == pytest.approx(law.scored, rel=0.01)
    assert law.seconds(Work(1, 100, 50, 0)) == pytest.approx(3.0, rel=0.01)


def test_no_coefficient_is_negative():
    g = torch.Generator().manual_seed(0)
    for _ in range(50):
        works = [Work(1, 100 * n, 10 * n * n, n) for n in range(1, 6)]
        law = fit(works, (torch.rand(5, generator=g) + 0.1).tolist())
        assert min(law.call, law.weights, law.attended, law.scored) >= 0


@pytest.mark.parametrize(("works", "seconds"), [([], []), ([Work(1, 1, 1, 0)], [0.0]), ([Work(1, 0, 1, 0)], [1.0])])
def test_what_cannot_be_fitted(works, seconds):
    with pytest.raises(ValueError, match="one measurement or more"):
        fit(works, seconds)


@pytest.mark.parametrize("length", [1, 100, 128, 300, 5000, 8192])
def test_a_ladder_covers_a_length_in_growing_pieces(length):
    prefill_chunks = ladder(length)
    assert prefill_chunks[0][0] == 0 and prefill_chunks[-1][1] == length
    assert all(a[1] == b[0] for a, b in zip(prefill_chunks[:-1], prefill_chunks[1:], strict=True))
    assert max(b - a for a, b in prefill_chunks) <= PREFILL_CHUNK
