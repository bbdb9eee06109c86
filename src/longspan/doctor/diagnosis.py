"""The result of ``longspan.diagnose``: findings that print as a page."""

from __future__ import annotations

import io

from rich.console import Console, ConsoleOptions, RenderResult

from longspan.doctor import page
from longspan.doctor.findings import Findings


class Diagnosis(Findings):
    """Findings that print as a page, in a terminal of any width or as text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from page.of(self, options.max_width)

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=110, color_system=None)
        console.print(self)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]
