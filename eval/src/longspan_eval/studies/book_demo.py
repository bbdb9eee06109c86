"""The demonstration on a real language model: a play is read beyond a declared window, and asked for what is in it.

The window is smaller than the model's own, in which the stock model sees all of the text, for comparison.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from longspan.loading.fetch import fetch
from longspan.loading.known import KNOWN, TEXTS
from longspan.loading.models import load
from longspan.model.window import window_of
from longspan.text.encode import beginning
from longspan_eval.generate import prefill
from longspan_eval.planted import ROOM, Planted, draw_facts, evenly, plant, says, sentences
from longspan_eval.reading import Asking
from longspan_eval.session import Session
from longspan_eval.spec import STOCK, MethodSpec, parse_spec

MODEL, PLAY = "smollm2", "hamlet"
WINDOW = 2048  # declared
LENGTH = 2 * WINDOW
FACTS = 5
METHOD = "esa:share=group"  # of the methods in linear time the one that finds most (docs/real-models.md)


@dataclass(frozen=True)
class Way:
    """A way to read the text.

    Attributes:
        spec: the method, or stock.
        cut: read no more than the window's end of the text.
    """

    title: str
    spec: MethodSpec
    cut: bool = False


def run(console: Console, *, quiet: bool = False) -> dict[str, Any]:
    """Fetch the model and the play, plant facts in it, read it three ways, ask for each fact, and show the answers.

    Returns:
        The questions, the answers and the seconds, for JSON.

    Raises:
        LongspanError: the model or the play cannot be fetched.
    """
    paths = [fetch(one, quiet=quiet, say=console.print) for one in (TEXTS[PLAY], KNOWN[MODEL])]
    model, tokenizer = load(paths[1], dtype="float32", quiet=quiet)
    title = TEXTS[PLAY].title
    text = _planted(_plain(paths[0]), title, tokenizer)
    ways = [
        Way(f"stock, the last {WINDOW:,} tokens", parse_spec(STOCK), cut=True),
        Way(f"{METHOD}, window {WINDOW:,}", parse_spec(METHOD)),
        Way(f"stock, window {window_of(model):,}", parse_spec(STOCK)),
    ]
    console.print(
        f"\n{KNOWN[MODEL].title} reads {LENGTH:,} tokens of {title}, in which {FACTS} sentences about people of no "
        f"play are hidden, and is asked for each. A window of {WINDOW:,} tokens is declared. The model was trained on "
        f"{window_of(model):,}, and the last row shows what it finds in that window.\n"
    )
    session, said = Session(model, tokenizer), []
    for way in ways:
        began = time.perf_counter()
        with console.status(f"{way.title} ..."):
            answers = list(_answers(session, text, way))
        seconds = time.perf_counter() - began
        found = sum(says(one, asked.value) for one, asked in zip(answers, text.asked, strict=True))
        said.append({"title": way.title, "answers": answers, "found": found, "seconds": round(seconds, 1)})
        console.print(f"  {way.title}: {found} of {FACTS} found, {seconds:.0f} s")
    session.detach()
    console.print(_table(text, said))
    return {
        "model": KNOWN[MODEL].title,
        "window": WINDOW,
        "tokens": len(text.input_ids),
        "questions": [{"statement": one.statement.strip(), "answer": one.value} for one in text.asked],
        "rows": said,
    }


def _plain(path: Path) -> str:
    """The text of Markdown, without its marks."""
    return path.read_text(encoding="utf-8").replace("**", "").replace("_", "").replace("#", "")


def _planted(text: str, title: str, tokenizer: Any) -> Planted:
    facts, units = draw_facts(random.Random(0), text, FACTS), sentences(text, tokenizer)
    return plant(tokenizer, beginning(tokenizer), units, 0, LENGTH, facts, title, depths=evenly(FACTS), targets=0)


@torch.inference_mode()
def _answers(session: Session, text: Planted, way: Way) -> Iterator[str]:
    read = text.input_ids[ROOM - WINDOW :] if way.cut else text.input_ids
    session.attach(way.spec, LENGTH, window=WINDOW)
    _, cache = prefill(session.model, torch.tensor([read], device=session.device))
    asking = Asking(session, cache)
    for one in text.asked:
        yield " ".join(asking.answer(one.question, one.value).split())


def _table(text: Planted, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="bold", title="")
    for head in ("hidden in the play", *(row["title"] for row in rows)):
        table.add_column(head, overflow="fold")
    for n, asked in enumerate(text.asked):
        answers = [escape(row["answers"][n]) or "(nothing)" for row in rows]
        marked = (f"[{'green' if says(one, asked.value) else 'red'}]{one}[/]" for one in answers)
        table.add_row(asked.statement.strip(), *marked)
    table.add_row("", *(f"{row['found']} of {FACTS}" for row in rows), style="bold")
    return table
