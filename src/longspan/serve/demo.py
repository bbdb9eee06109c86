"""The document of ``longspan serve bundled --demo``: prose with a pass key in it, which a question can find."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from longspan import files
from longspan.bundled import heldout_text
from longspan.errors import LongspanError
from longspan.serve.host import Host

NAME = "A long walk, with a pass key.txt"
_CHARACTERS = 22_000  # more than a dozen windows of the bundled model
_FACT = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
KEY = "71428"


def demo_text() -> str:
    """The text; a third of its way in stands the pass key."""
    text = heldout_text()[:_CHARACTERS]
    at = text.index("\n", _CHARACTERS // 3)
    return text[:at] + _FACT.format(key=KEY) + text[at:]


def add_demo(host: Host) -> None:
    """Have the document read, unless it is there, and wait until it is.

    Raises:
        LongspanError: it cannot be read.
    """
    held = next((one for one in host.library.all() if one.name == NAME), None)
    if held is None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "demo")
            files.write(path, demo_text())
            held = host.library.add(NAME, ".txt", path)
    while held.status in ("queued", "reading"):
        time.sleep(0.05)
    if held.status == "failed":
        raise LongspanError(f"the demo's document cannot be read: {held.error}")
