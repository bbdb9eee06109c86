"""The check of a method after a reading, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longspan.cli.output import hushed, prefill_bar, say
from longspan.errors import LongspanError, one_line, printable

_LONGEST = 60.0  # seconds of a check that nobody asked for

if TYPE_CHECKING:
    from rich.console import Console

    from longspan.documents.document import Document
    from longspan.documents.selftest import Checked


def is_wanted(document: Document, seconds: float, console: Console) -> bool:
    """Whether a text is checked unless said otherwise: if it is long, and the check short.

    Args:
        seconds: that its reading took, as long for each token as the check.
    """
    from longspan.documents.selftest import WINDOWS

    tokens = WINDOWS * document.attachment().report.window
    if document.tokens <= tokens:
        return False
    if (takes := seconds * tokens / document.tokens) <= _LONGEST:
        return True
    say(
        console,
        f"the method is not checked on planted facts, which takes about {takes / 60:.0f} minutes; --check does it",
    )
    return False


def checked_on_facts(document: Document, console: Console, quiet: bool) -> list[Checked] | None:
    """What the document's method finds of planted facts, and if that is nothing, what others find."""
    from longspan.documents.selftest import self_test

    say(console, "the document is saved; the method is checked on planted facts (--no-check leaves this out)")
    try:
        with hushed(quiet), prefill_bar(document.model, quiet):
            found = list(self_test(document))
    except (LongspanError, OSError) as error:  # the document is there all the same
        say(console, printable(f"check: not done: {one_line(error)}"))
        return None
    own, others = found[0], found[1:]
    words = f"check: {own.found} of {own.planted} planted facts are found"
    if not own.found:
        words = f"check: {own.method} finds none of {own.planted} planted facts; "
        better = next((one for one in others if one.found), None)
        tried = " and ".join(one.method for one in others)
        words += (
            f"{better.method} finds {better.found}: read the text into a new folder with --method {better.method}"
            if better is not None
            else f"neither do {tried}, so this model may be too small for questions about a text"
        )
    say(console, words)
    return found
