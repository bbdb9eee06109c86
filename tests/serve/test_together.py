"""The next tokens of all requests in one forward: each answer is that of the request alone."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.serve.caches import Caches
from longspan.serve.engine import Engine
from longspan.serve.events import Delta, Finished
from longspan.serve.generation import Generation, GenerationRequest
from longspan.serve.prompts import PreviousAnswers
from longspan.serve.sampling import Sampling
from longspan.serve.together import NextTokens
from support.serving import wait_for

METHODS = ["longheads:score=bounds", "dca", "esa", "streaming-llm", "infllm", "dynamic-ntk"]
# Characters of prompts, some beyond the window, and tokens of answers: they come and go at different steps.
SIZES = [(300, 9), (40, 14), (2_400, 6), (120, 3), (900, 12), (60, 8)]


@pytest.fixture(scope="module", params=METHODS)
def host(request):
    return host_of(request.param)


@pytest.fixture(scope="module")
def longheads():
    return host_of(METHODS[0])


def host_of(method):
    """What a generation asks of its host, and the rows of each forward of a single token."""
    model, tokenizer = load_bundled()
    longspan.extend(model, method)
    model.generation_config.eos_token_id = None
    rows = Counter()
    model.register_forward_pre_hook(lambda _, args, kwargs: count(rows, kwargs["input_ids"]), with_kwargs=True)
    caches = Caches(model, memory=0, directory=None, disk=0)
    return SimpleNamespace(
        model=model, tokenizer=tokenizer, caches=caches, previous_answers=PreviousAnswers(), prefill_chunk=256,
        documents=tuple, rows=rows,
    )  # fmt: skip


def count(rows, ids):
    if ids.shape[1] == 1:
        rows[ids.shape[0]] += 1


class Asked:
    """A request and what became of it; ``at`` is called at its ``n``-th event."""

    def __init__(self, host, size, n=-1, at=None, sampling=None):
        characters, tokens = size
        ids = host.tokenizer(heldout_text()[characters : 2 * characters], return_tensors="pt")["input_ids"][0]
        self.events, self._n, self._at = [], n, at
        request = GenerationRequest(ids, tokens, sampling or Sampling(temperature=0.0))
        self.job = Generation(host, request, self.emit)

    def emit(self, event):
        self.events.append(event)
        if len(self.events) == self._n:
            self._at(self.job)

    @property
    def text(self):
        return "".join(event.text for event in self.events if isinstance(event, Delta))

    @property
    def end(self):
        return self.events[-1]


def answered(host, asked, ahead=True, running=4):
    """Run these requests to their ends, ``running`` at a time."""
    engine = Engine(running, len(asked), *([NextTokens(host.model)] if ahead else ()))
    for one in asked:
        engine.submit(one.job)
    engine.start()
    wait_for(lambda: not engine.running and not engine.waiting, 120)
    engine.stop()
    return asked


def alone(host, sizes=SIZES, **options):
    return [answered(host, [Asked(host, size, **options)], ahead=False)[0].text for size in sizes]


def test_answers_are_those_of_the_request_alone(host):
    expected = alone(host)
    host.rows.clear()
    asked = answered(host, [Asked(host, size) for size in SIZES])
    assert [one.text for one in asked] == expected and len(set(expected)) == len(SIZES)
    assert sum(rows * n for rows, n in host.rows.items()) == sum(tokens - 1 for _, tokens in SIZES)
    assert 2 <= max(host.rows) <= 4  # whole prefill chunks come between as time allows


def test_each_samples_for_itself(longheads):
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=3, alternatives=2)
    expected = alone(longheads, sampling=sampling)
    assert expected != alone(longheads)
    found = answered(longheads, [Asked(longheads, size, sampling=sampling) for size in SIZES])
    assert [one.text for one in found] == expected


def test_seconds_of_a_request_are_those_of_the_forwards_that_it_was_in(longheads):
    longheads.rows.clear()
    ends = [one.end for one in answered(longheads, [Asked(longheads, (300, 20)) for _ in range(4)])]
    assert longheads.rows == {4: 19}
    assert all(isinstance(end, Finished) and end.decode > 0 and end.turns >= 0 for end in ends)
    longest = max(end.prefill + end.decode + end.turns for end in ends)
    assert sum(end.decode for end in ends) > longest  # each was in nearly all of the time


def test_who_went_away_leaves_the_others(longheads):
    expected = alone(longheads)
    gone = 1

    def leave(job):
        job.cancelled = True

    asked = [Asked(longheads, size, 3, leave if n == gone else lambda job: None) for n, size in enumerate(SIZES)]
    answered(longheads, asked)
    assert len(asked[gone].events) == 3 and expected[gone].startswith(asked[gone].text)
    assert [one.text for n, one in enumerate(asked) if n != gone] == [x for n, x in enumerate(expected) if n != gone]
    assert all(one.job.joined is None for one in asked)


@pytest.mark.parametrize("layer", [0, 3])
def test_one_that_fails_fails_alone(host, layer):
    """Its memory is refused in a layer after those that took the tokens of all in."""
    expected = alone(host)
    bad = 2

    def refuse(job):
        store, why = job.cache.layers[layer].store, MemoryError("no memory for this one")

        def refused(*args):
            raise why

        store.reserve_one = store.append = refused

    asked = [Asked(host, size, 2, refuse if n == bad else lambda job: None) for n, size in enumerate(SIZES)]
    answered(host, asked)
    assert isinstance(asked[bad].end, MemoryError) and expected[bad].startswith(asked[bad].text)
    assert [one.text for n, one in enumerate(asked) if n != bad] == [x for n, x in enumerate(expected) if n != bad]


def test_one_whose_sampling_fails_fails_alone(longheads):
    expected = alone(longheads)

    def spoil(job):
        job._sampler = None

    asked = [Asked(longheads, size, 2, spoil if n == 0 else lambda job: None) for n, size in enumerate(SIZES)]
    answered(longheads, asked)
    assert isinstance(asked[0].end, TypeError)
    assert [one.text for one in asked[1:]] == expected[1:]
