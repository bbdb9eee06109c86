"""The check of a method on facts that are planted in a copy of a text's end."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.cli.checking import is_wanted
from longspan.documents import selftest
from longspan.documents.selftest import self_test
from longspan.errors import LongspanError
from longspan.hf.attach import attachment_of
from support.command_line import run  # noqa: F401  a fixture

WINDOW = 512


@pytest.fixture
def read(tmp_path):
    """Reads a text of several windows with the bundled model."""

    def call(method, text=None):
        return longspan.read(
            *load_bundled(), text or heldout_text()[:6_000], method=method, out=tmp_path / "a", prefill_chunk=512
        )

    return call


@pytest.mark.parametrize("method", ["dca", "longheads:chunk_length=16,score=bounds"])
def test_a_method_that_reads_beyond_the_window_finds_them(read, method):
    (own,) = self_test(read(method))
    assert own.found >= 2 and own.planted == 3 and own.method.split(":")[0] == method.split(":")[0]


@pytest.mark.parametrize("method", ["streaming-llm", "full"])
def test_one_that_does_not_is_told_and_another_named(read, method):
    own, other = self_test(read(method))
    assert own.found == 0 and other.found > 0 and other.method == "dca"


def test_only_others_are_tried(read, monkeypatch):
    monkeypatch.setattr(selftest, "_ANSWER", 1)  # less than a value has
    assert [one.method.split(":")[0] for one in self_test(read("dca"))] == ["dca", "esa"]


@pytest.mark.parametrize("method", ["dca", "streaming-llm"])
def test_document_and_model_stay_as_they_are(read, tmp_path, method):
    document = read(method)
    files = {path: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    before, answer = attachment_of(document.model), document.ask("Where?", 5).tokens
    list(self_test(document))
    assert attachment_of(document.model) is before and document.ask("Where?", 5).tokens == answer
    assert {path: path.read_bytes() for path in (tmp_path / "a").iterdir()} == files


def test_facts_are_about_nobody_in_the_text(read):
    text = heldout_text()[:3_000]
    document = read("dca", f"{text} Ingrid went to Lisbon. {text}")
    planted, asked = selftest._planted(document, 2 * WINDOW)
    assert {value for _, value in asked} == {"Nairobi", "falcon", "clarinet"}
    assert all("Ingrid" not in question for question, _ in asked)
    at = [planted.index(f" {value} ") for _, value in asked]
    assert at == sorted(at) and at[-1] < len(planted) / 2
    crowded = text[:1_500] + " ".join(selftest._PEOPLE)
    with pytest.raises(LongspanError, match="--no-check"):
        selftest._planted(longspan.read(document.model, document.tokenizer, crowded), 2 * WINDOW)


@pytest.mark.parametrize(
    ("characters", "more", "checked"),
    [(6_000, [], True), (1_500, [], False), (1_500, ["--check"], True), (6_000, ["--no-check"], False)],
)
def test_the_command(run, tmp_path, characters, more, checked):  # noqa: F811
    (tmp_path / "text.txt").write_text(heldout_text()[:characters])
    args = ["read", tmp_path / "text.txt", "--model", "bundled", "--out", tmp_path / "a", "--method", "dca"]
    ran = run(*args, *more, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["check"]
    assert (found is not None) is checked is ("check: " in ran.err)
    assert json.loads(run(*args, "--json").out)["check"] is None, "it was read before"


def test_a_check_that_takes_minutes_is_asked_for(read):
    document = read("dca")
    said = io.StringIO()
    assert is_wanted(document, 60, Console(file=said)) and not said.getvalue()
    assert not is_wanted(document, 600, Console(file=said)) and "--check" in said.getvalue()
