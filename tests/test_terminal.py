"""Tables at any width: nothing is cut, and no word that fits a line is broken."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from longspan.terminal import Column, Sheet

COLUMNS = [Column("row"), Column("what it is"), Column("score", "right")]
ROWS = [
    ("dca:chunk_size=384", "every key, seen at a distance that is folded into the window", "98.0 (89.5-99.6) n=50"),
    ("stock", "", "·"),
    ("esa", "an address: github.com/someone/a-repository-with-a-long-name/and/a/path", "1,234,567"),
]


def shown(what, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(what)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [24, 30, 40, 60, 80, 120, 300])
@pytest.mark.parametrize("headed", [True, False])
def test_no_width_loses_anything(width, headed):
    text = shown(Sheet(COLUMNS, ROWS, title="what was found", headed=headed), width)
    assert max(map(len, text.splitlines())) <= width
    for word in " ".join(cell for row in ROWS for cell in row).split():
        if len(word) <= width - 4:
            assert word in text.split(), word
        else:
            assert word in "".join(text.split()), word
    assert "…" not in text


def test_columns_stand_where_they_fit_and_blocks_where_they_do_not():
    sheet = Sheet(COLUMNS, ROWS[:2])
    assert sheet.fits(80) and not sheet.fits(40)
    wide = [line for line in shown(sheet, 80).splitlines() if line.strip()]
    assert wide[0].split() == ["row", "what", "it", "is", "score"] and "98.0 (89.5-99.6) n=50" in wide[2]
    narrow = shown(sheet, 40).splitlines()
    assert narrow[0] == "dca:chunk_size=384" and any("98.0 (89.5-99.6) n=50" in line for line in narrow)
    assert [line.split() for line in narrow[-2:]] == [["stock"], ["score", "·"]]


def test_a_block_that_a_number_names_says_what_number():
    columns = [Column("layer", "right"), *(Column(f"a long heading {n}", "right") for n in range(3))]
    assert shown(Sheet(columns, [("7", "0.5", "0.6", "0.7")]), 30).splitlines()[0] == "layer 7"


def test_a_cell_is_never_read_as_markup():
    assert "[bold]x[/]" in shown(Sheet([Column("a"), Column("b")], [("[bold]x[/]", Text("[/]"))]), 40)
