"""Figures as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from longspan_eval.cell import Cell
from longspan_eval.figure import Figure
from longspan_eval.sample import environment

Figures = Sequence[tuple[Cell, Figure]]


def table(figures: Figures, *, code: bool = False) -> str:
    """Cells by row and column, in the order in which they come; ``code``: rows are set as code."""
    rows = list(dict.fromkeys(cell.row for cell, _ in figures))
    columns = list(dict.fromkeys(cell.column for cell, _ in figures))
    by_place = {(cell.row, cell.column): str(figure) for cell, figure in figures}
    labels = [f"`{row}`" if code else row for row in rows]
    texts = [[by_place.get((row, column), "") for column in columns] for row in rows]
    return table_of(["", *columns], [[label, *line] for label, line in zip(labels, texts, strict=True)])


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts: the first column is aligned left, all others right."""
    corner, *columns = map(_cell, head)
    lines = [" | ".join([f"| {corner}" if corner else "|", *columns]) + " |", "| --- |" + " ---: |" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(text: str) -> str:
    """A text in one line that ends no cell: questions and answers may hold anything."""
    return " ".join(text.split()).replace("|", "\\|")


def unfinished(figures: Figures) -> list[str]:
    """A line that says how many cells miss samples; none if no cell does."""
    n = sum(figure.unfinished for _, figure in figures)
    said = f"- {n} of {len(figures)} cells are unfinished: `·` has no prompt yet, `…` not all of them."
    return [said] if n else []


def overlapping(figures: Figures) -> list[str]:
    """A line on the blocks that intervals are taken over, if windows of a perplexity overlap; else none."""
    said = (
        "- Windows of mode whole overlap: those that score the same tokens are one block, intervals are over blocks, "
        "and a cell of one block has none."
    )
    return [said] if any(figure.blocks < figure.n for _, figure in figures if figure.blocks) else []


def made_with(command: str, where: str) -> str:
    """The command that makes a page, and what computed it."""
    return f"`{command}`\n\n{versions_line()}; {environment()['machine']}, {where}."


def versions_line() -> str:
    """``longspan 0.1.0, torch 2.9.0, …``."""
    found = environment()
    return ", ".join(f"{name} {found[name]}" for name in ("longspan", "torch", "transformers", "python"))
