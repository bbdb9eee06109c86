"""A server that drafts: its answers are those without drafts, alone and beside others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import longspan
from longspan.bundled import heldout_text
from longspan.drafting import DraftLengths
from support.serving import Served, cached, events, said

ASKED = [
    f"{n} of the things that " + "the sea and the shore and the sea and the shore and " * (n + 1) for n in range(4)
]
OPTIONS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 5},
    "a stop": {"temperature": 0, "stop": [" the"]},
    "logprobs": {"temperature": 0, "logprobs": True, "top_logprobs": 2},
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """One without drafts and one that verifies every proposal."""
    patch = pytest.MonkeyPatch()
    patch.setattr(DraftLengths, "affords", True)
    patch.setattr(DraftLengths, "length", lambda self, kind, most: min(most, 15) if self._plain else 0)
    made = []
    for draft in (None, "lookup"):
        model, tokenizer = longspan.load_bundled()
        longspan.extend(model, "dca", draft=draft)
        made.append(Served(model, tokenizer, tmp_path_factory.mktemp("documents")))
    yield made
    for one in made:
        one.close()
    patch.undo()


def drafts(answer):
    return answer["usage"].get("completion_tokens_details")


def texts_of(answer):
    """Text, end and logprobs of an answer."""
    choice = answer["choices"][0]
    logged = [(one["token"], round(one["logprob"], 3)) for one in (choice.get("logprobs") or {}).get("content", ())]
    return choice["message"]["content"], choice["finish_reason"], logged, answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("case", OPTIONS)
def test_an_answer_is_that_without_drafts(servers, case):
    plain, drafted = (one.ask(ASKED[3], max_tokens=40, **OPTIONS[case]) for one in servers)
    assert texts_of(drafted) == texts_of(plain)
    assert drafts(plain) is None and drafts(drafted)["rejected_prediction_tokens"] >= 0


def test_what_was_accepted_is_counted(servers):
    answers = [servers[1].ask(text, max_tokens=60, temperature=0) for text in ASKED]
    assert sum(drafts(one)["accepted_prediction_tokens"] for one in answers) > 0
    said_by = servers[1].http.get("/metrics").text
    assert 'longspan_tokens_total{kind="accepted"}' in said_by and 'kind="drafted"' in said_by
    assert 'kind="drafted"' not in servers[0].http.get("/metrics").text


def test_answers_beside_each_other_and_after_each_other(servers):
    """Tokens of several answers are computed together, between drafts of one; and a turn goes on from a cache."""
    found = []
    for one in servers:
        with ThreadPoolExecutor(len(ASKED)) as pool:
            lengths = [60, 9, 25, 3]
            got = list(
                pool.map(lambda own, one=one: one.ask(own[0], max_tokens=own[1]), zip(ASKED, lengths, strict=True))
            )
        talk = [{"role": "user", "content": ASKED[3]}]
        for _ in range(3):
            got.append(one.ask(talk, max_tokens=21))
            talk += [{"role": "assistant", "content": said(got[-1])}, {"role": "user", "content": "and the sea"}]
        assert cached(got[-1]) > cached(got[-2]) > 0
        found.append([texts_of(x) for x in got])
    assert found[1] == found[0]


def test_documents_with_passages_and_streams(servers):
    found = []
    for one in servers:
        document = one.add(heldout_text()[:6000])
        body = {"model": "tiny", "messages": [{"role": "user", "content": "What is this about?"}], "document": document}
        body |= {"max_tokens": 30, "passages": True, "stream": True, "temperature": 0}
        with one.http.stream("POST", "/v1/chat/completions", json=body) as response:
            came = events(response)
        text = "".join(x["choices"][0]["delta"].get("content") or "" for x in came if x.get("choices"))
        found.append((text, [p for x in came for p in x.get("passages") or ()]))
    assert found[1] == found[0] and found[0][0]
