"""The server's log, as lines of text or of JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from traceback import extract_tb

from longspan.serve.engine import log

FORMATS = ("text", "json")


class TextLines(logging.Formatter):
    """A line a record, but for a traceback: what an error says may have lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record with its message in one line."""
        record.message = " ".join(record.message.split())
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One JSON object a record. Errors are told by their types and places: their words may be those of a user."""

    def format(self, record: logging.LogRecord) -> str:
        args = record.args if isinstance(record.args, tuple) else ()
        told = tuple(type(one).__name__ if isinstance(one, BaseException) else one for one in args)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name,
            "message": str(record.msg) % told if told else str(record.msg),
        }  # fmt: skip
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            places = [f"{one.filename}:{one.lineno} {one.name}" for one in extract_tb(error.__traceback__)]
            return json.dumps(line | {"error": type(error).__name__, "at": places})
        return json.dumps(line)


def set_up(kind: str) -> None:
    """Write the log to stderr, in one of ``FORMATS``."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if kind == "json" else TextLines("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    if kind == "json":
        logging.captureWarnings(True)
        log.setLevel(logging.INFO)


def tell(kind: str, text: str) -> None:
    """Say on stderr how far the server is."""
    if kind == "json":
        log.info(text)
    else:
        print(text, file=sys.stderr, flush=True)
