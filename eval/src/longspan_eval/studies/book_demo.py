"""The demonstration on a real language model: a play is read beyond the model's window, and asked for what is in it."""

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

from longspan.hf.argument import CACHE_ARGUMENT
from longspan.loading.fetch import fetch
from longspan.loading.known import KNOWN, TEXTS
from longspan.loading.models import load
from longspan.model.window import window_of
from longspan.text.encode import beginning
from longspan_eval.planted import ROOM, Planted, draw_facts, evenly, plant, says, sentences
from longspan_eval.reading import Asking
from longspan_eval.session import Session
from longspan_eval.spec import STOCK, MethodSpec, parse_spec

MODEL, PLAY = "smollm2", "hamlet"
WINDOWS = 2  # how many times its window the model reads
FACTS = 5
METHOD = "esa:share=group"  # finds most of the methods in linear time beyond this model's window (docs/real-models.md)


@dataclass(frozen=True)
class Row:
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
    window = window_of(model)
    length = WINDOWS * window
    title = TEXTS[PLAY].title
    text = _planted(_plain(paths[0]), title, tokenizer, length)
    rows = [
        Row(f"stock, the last {window:,} tokens", parse_spec(STOCK), cut=True),
        Row(f"stock, all {length:,}", parse_spec(STOCK)),
        Row(f"{METHOD}, all {length:,}", parse_spec(METHOD)),
    ]
    console.print(
        f"\n{KNOWN[MODEL].title} was trained on {window:,} tokens. It reads {length:,} tokens of {title}, in which "
        f"{FACTS} sentences about people of no play were hidden, and is asked for each.\n"
    )
    session, said = Session(model, tokenizer), []
    for row in rows:
        began = time.perf_counter()
        with console.status(f"{row.title} ..."):
            answers = list(_answers(session, text, row, length, window))
        seconds = time.perf_counter() - began
        found = sum(says(one, asked.value) for one, asked in zip(answers, text.asked, strict=True))
        said.append({"row": row.title, "answers": answers, "found": found, "seconds": round(seconds, 1)})
        console.print(f"  {row.title}: {found} of {FACTS} found, {seconds:.0f} s")
    session.detach()
    console.print(_table(text, said))
    return {
        "model": KNOWN[MODEL].title,
        "window": window,
        "tokens": len(text.input_ids),
        "questions": [{"statement": one.statement.strip(), "answer": one.value} for one in text.asked],
        "rows": said,
    }


def _plain(path: Path) -> str:
    """The text of Markdown, without its marks."""
    return path.read_text(encoding="utf-8").replace("**", "").replace("_", "").replace("#", "")


def _planted(text: str, title: str, tokenizer: Any, length: int) -> Planted:
    facts, units = draw_facts(random.Random(0), text, FACTS), sentences(text, tokenizer)
    return plant(
        tokenizer, beginning(tokenizer), units, 0, length, facts, title, depths=evenly(FACTS), targets=0
    )  # fmt: skip


@torch.inference_mode()
def _answers(session: Session, text: Planted, row: Row, length: int, window: int) -> Iterator[str]:
    read = text.input_ids[ROOM - window :] if row.cut else text.input_ids
    session.attach(row.spec, length)
    out = session.model(torch.tensor([read], device=session.device), use_cache=True, logits_to_keep=1)
    asking = Asking(session, getattr(out, CACHE_ARGUMENT))
    for one in text.asked:
        yield " ".join(asking.answer(one.question, one.value).split())


def _table(text: Planted, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="bold", title="")
    for head in ("hidden in the play", *(row["row"] for row in rows)):
        table.add_column(head, overflow="fold")
    for n, asked in enumerate(text.asked):
        answers = [escape(row["answers"][n]) or "(nothing)" for row in rows]
        marked = (f"[{'green' if says(one, asked.value) else 'red'}]{one}[/]" for one in answers)
        table.add_row(asked.statement.strip(), *marked)
    table.add_row("", *(f"{row['found']} of {FACTS}" for row in rows), style="bold")
    return table
