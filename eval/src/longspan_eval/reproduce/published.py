"""The papers' own tables and figures, by the papers' numbers. What no copy at hand has is not given from memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.json")

Value = float | str | None


@dataclass(frozen=True)
class Published:
    """A table of a paper, or of a figure what its text says of it.

    Attributes:
        unit: of its figures.
        columns, rows: as published; None if a place is empty, or cannot be read.
        remark: what to know of it, such as where it disagrees with itself.
        unread: why there are no rows, although the paper has some; else None.
        picture: whether the paper has it as a picture alone, of which its text says no figure.
    """

    number: str
    title: str
    unit: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Value, ...], ...] = ()
    remark: str = ""
    unread: str | None = None
    picture: bool = False


@lru_cache(maxsize=1)
def _everything() -> dict[str, dict[str, Published]]:
    read = json.loads(FILE.read_text(encoding="utf-8"))
    return {paper: {number: _table(number, one) for number, one in tables.items()} for paper, tables in read.items()}


def _table(number: str, one: dict[str, Any]) -> Published:
    rows = tuple(map(tuple, one.pop("rows", ())))
    columns = tuple(one.pop("columns", ()))
    return Published(number, columns=columns, rows=rows, **one)


def published(paper: str, number: str) -> list[Published]:
    """The tables whose number is this one, such as both halves of a Table 2; there may be none."""
    own = _everything().get(paper, {})
    return [one for key, one in own.items() if key == number or key.startswith(f"{number}, ")]
