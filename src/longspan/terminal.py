"""Tables that stay complete on a narrow terminal: if the columns do not fit, each row becomes a block of lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2  # characters between two columns
_PROSE = 20  # the minimum width of a text column, in characters
_FRAME = 2  # the box adds one character on each side of a table
_JOINTS = re.compile(r"(?<=[/,:=_])")  # where to break a word that is longer than a line


@dataclass(frozen=True)
class Column:
    """A heading, and the alignment and rich style of its cells."""

    head: str
    justify: Literal["left", "right"] = "left"
    style: str = ""


class Sheet:
    """Rows of cells under headings. No value is truncated, and no word that fits a line is broken.

    Args:
        columns: the first one names the row.
        rows: a cell is a text of one or more lines, without markup, or a rich ``Text``.
        title: a line above the table.
        headed: whether a table shows the headings; blocks always show them.
    """

    def __init__(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], *, title: str = "", headed: bool = True
    ) -> None:
        self._columns, self._title, self._headed = columns, title, headed
        self._rows = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
        self._between = _GAP * (len(columns) - 1) + _FRAME
        self._title_width = max(map(cell_len, title.splitlines()), default=0) + _FRAME
        self._least: list[int] = []  # the least width of each column
        self._most: list[int] = []  # that of its longest line
        for n, column in enumerate(columns):
            cells = [*([Text(column.head)] if headed else []), *(row[n] for row in self._rows)]
            line, word = (max(map(size, cells), default=0) for size in (_longest_line, _longest_word))
            # A figure, for example "98.0 (89.5-99.6) n=50", must stay on one line.
            self._least.append(line if column.justify == "right" else max(word, min(line, _PROSE)))
            self._most.append(line)

    def fits(self, width: int) -> bool:
        """Whether the columns fit this width, in characters."""
        return sum(self._least) + self._between <= width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.fits(options.max_width):
            yield self._table(options.max_width)
        else:
            yield from self._blocks(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        least, most = (max(sum(sizes) + self._between, self._title_width) for sizes in (self._least, self._most))
        return Measurement(least, most).with_maximum(options.max_width)

    def _widths(self, width: int) -> list[int]:
        least, most = self._least, self._most
        spare = width - self._between - sum(least)
        wanted = sum(most) - sum(least)
        if wanted <= spare:
            return most
        return [low + spare * (high - low) // wanted for low, high in zip(least, most, strict=True)]

    def _table(self, width: int) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD if self._headed else None,
            show_header=self._headed,
            header_style="bold",
            padding=(0, _GAP - 1 if self._headed else _GAP, 0, 0),  # the box adds one character between columns
            pad_edge=False,
            collapse_padding=True,
            title=self._title or None,
            title_style="bold",
            title_justify="left",
            min_width=min(self._title_width, width),
        )
        for column, size in zip(self._columns, self._widths(width), strict=True):
            table.add_column(column.head, justify=column.justify, style=column.style, width=size, overflow="fold")
        for row in self._rows:
            table.add_row(*row)
        return table

    def _blocks(self, width: int) -> Iterator[RenderableType]:
        if self._title:
            yield Text(self._title, style="bold")
        heads = [" ".join(column.head.split()) for column in self._columns]
        head_width = max((cell_len(head) for head in heads[1:]), default=0)
        for row in self._rows:
            # A name is clear without its heading; a number is not.
            figure = self._columns[0].justify == "right"
            first = _cut(Text.assemble(heads[0], " ", row[0]) if figure else row[0], width)
            first.stylize(self._columns[0].style or "bold")
            yield first
            if not self._headed:
                yield from (Padding(_cut(cell, width - 2), (0, 0, 0, 2), expand=False) for cell in row[1:])
                continue
            available = width - 2 - head_width - _GAP
            lines = Table.grid(padding=(0, _GAP, 0, 0))
            lines.add_column(width=head_width)
            lines.add_column(width=max(available, 1), overflow="fold")
            below: list[tuple[str, Text]] = []
            for head, cell in zip(heads[1:], row[1:], strict=True):
                if max(_longest_word(cell), min(_longest_line(cell), _PROSE)) > available:
                    below.append((head, cell))
                elif cell.plain:
                    lines.add_row(Text(head, style="dim"), cell)
            if lines.row_count:
                yield Padding(lines, (0, 0, 0, 2), expand=False)
            for head, cell in below:
                yield Padding(Text(head, style="dim"), (0, 0, 0, 2), expand=False)
                yield Padding(_cut(cell, width - 4), (0, 0, 0, 4), expand=False)


def plain_text(shown: RenderableType, width: int) -> str:
    """An object's text in a terminal without colours, ``width`` in characters."""
    file = StringIO()
    Console(file=file, width=width, color_system=None).print(shown)
    return file.getvalue().rstrip()


def _cut(cell: Text, width: int) -> Text:
    """Break words that are longer than a line, for example addresses, at their joints."""
    if _longest_word(cell) <= width:
        return cell.copy()

    def lines(match: re.Match[str]) -> str:
        parts = [""]
        for part in _JOINTS.split(match[0]):
            if parts[-1] and cell_len(parts[-1] + part) > width:
                parts.append("")
            parts[-1] += part
        return "\n".join(parts)

    return Text(re.sub(rf"\S{{{width + 1},}}", lines, cell.plain), style=cell.style, overflow="fold")


def _longest_line(cell: Text) -> int:
    return max((cell_len(line) for line in cell.plain.splitlines()), default=0)


def _longest_word(cell: Text) -> int:
    return max((cell_len(word) for word in cell.plain.split()), default=0)
