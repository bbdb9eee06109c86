"""The time that the extraction of a file's text takes."""

from __future__ import annotations

import gc
import time
from contextlib import suppress

from longspan.errors import DocumentError
from longspan.text.extract import extract


def seconds(path):
    """The processor's time, in which others that run at the same time do not count."""
    gc.collect()
    gc.disable()  # how often it looks at all objects depends on those of other tests
    began = time.process_time()
    try:
        with suppress(DocumentError):  # a file that nests too deep is refused, which takes time, too
            extract(path)
        return time.process_time() - began
    finally:
        gc.enable()
