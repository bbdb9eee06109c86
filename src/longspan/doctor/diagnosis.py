"""The result of ``longspan.diagnose``: findings that print as a page."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult

from longspan.doctor import page
from longspan.doctor.findings import Findings
from longspan.terminal import plain_text


class Diagnosis(Findings):
    """Findings that print as a page, in a terminal of any width or as text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from page.of(self, options.max_width)

    def __str__(self) -> str:
        return plain_text(self, 110)
