"""The papers' own figures, each with where it was read. What no source at hand has is not given from memory."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("published.json")


class Published(NamedTuple):
    """A figure as it was published: of what, under which heading, as written, and where it was read."""

    row: str
    column: str
    figure: str
    source: str


@lru_cache(maxsize=1)
def _everything() -> dict[str, dict[str, list[Published]]]:
    read = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        paper: {table: [Published(*one) for one in found] for table, found in tables.items()}
        for paper, tables in read.items()
    }


def published(paper: str, table: str) -> list[Published]:
    """The figures of a table that are at hand; there may be none."""
    return _everything().get(paper, {}).get(table, [])
