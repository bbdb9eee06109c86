"""The document of ``longspan serve bundled --demo``: prose with a pass key in it, which a question can find."""

from __future__ import annotations

import time
from io import BytesIO

from longspan.bundled import heldout_text
from longspan.errors import LongspanError
from longspan.serve.host import Host

NAME = "A long walk, with a pass key.txt"
_CHARACTERS = 22_000  # more than a dozen windows of the bundled model
_FACT = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
KEY = "71428"
QUESTIONS = "What is the pass key? The pass key is", "Remember it. The pass key is"  # what so small a model can answer


def demo_text() -> str:
    """The text; a third of its way in stands the pass key."""
    text = heldout_text()[:_CHARACTERS]
    at = text.index("\n", _CHARACTERS // 3)
    return text[:at] + _FACT.format(key=KEY) + text[at:]


def add_demo(host: Host) -> None:
    """Add the document, unless it is there, and wait until it is read.

    Raises:
        LongspanError: it cannot be read.
    """
    record = next((one for one in host.library.all() if one.name == NAME), None)
    if record is None:
        record = host.library.add(NAME, BytesIO(demo_text().encode()))
    while record.status in ("queued", "reading"):
        time.sleep(0.05)
    record.questions = QUESTIONS
    if record.status == "failed":
        raise LongspanError(f"the demo's document cannot be read: {record.error}")
