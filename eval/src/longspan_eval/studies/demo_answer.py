"""One answer beside another, as both are typed: what ``longspan demo`` ends with."""

from __future__ import annotations

import time
from typing import Any

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text
from transformers import PreTrainedModel

from longspan.bundled import load_bundled
from longspan.hf import extend
from longspan_eval.generate import stream
from longspan_eval.spec import STOCK
from longspan_eval.task import Example

ANSWER_TOKENS = 24


def answer_beside(
    model: PreTrainedModel, tokenizer: Any, prompt: Example, method: str, console: Console, *, lines: int
) -> None:
    """One answer token by token, the stock bundled model's beside the extended one's; ``lines``: of the question."""
    other, _ = load_bundled()
    extend(other, method)
    sides = {STOCK: stream(model, tokenizer, prompt.input_ids, ANSWER_TOKENS)}
    sides[method] = stream(other, tokenizer, prompt.input_ids, ANSWER_TOKENS)
    said = dict.fromkeys(sides, "")
    question = "\n".join(tokenizer.decode(prompt.input_ids[-120:]).splitlines()[-lines:])
    console.print(
        f"\n  [bold]A prompt of {len(prompt.input_ids):,} tokens[/]; what is asked for lies at "
        f"{prompt.depth:.0%} of it: [bold cyan]{prompt.answer}[/]. Both type:\n"
    )
    with Live(_panels(said, question, prompt.answer), console=console, refresh_per_second=20) as live:
        typing = dict(sides)
        while typing:
            for name in list(typing):
                text = next(typing[name], None)
                if text is None or "\n" in text.strip():
                    del typing[name]
                else:
                    said[name] = text
            live.update(_panels(said, question, prompt.answer))
            if console.is_terminal:
                time.sleep(0.08)  # a model this small types faster than one can follow


def _panels(said: dict[str, str], question: str, answer: str) -> RenderableType:
    panels = []
    for name, text in said.items():
        right = answer in text
        typed = Text(question, style="dim")
        typed.append(text.replace("\n", " "), style="bold green" if right else "bold red")
        border = "green" if right else "red"
        panels.append(Panel(typed, title=name, title_align="left", border_style=border, width=38, height=6))
    return Columns(panels, padding=(0, 1))
