"""Lines of the log as JSON: each is one object, and none has a user's words."""

from __future__ import annotations

import json
import logging
import socket

import pytest

from longspan.errors import LongspanError
from longspan.serve.logs import JsonLines, TextLines
from support.serving import wait_for
from support.serving_process import Process

SECRET = "what a user wrote"


def record(message, *args, error=None):
    told = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("longspan.serve", logging.ERROR, "x.py", 1, message, args, told)


def test_an_error_is_its_type_and_place():
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        line = JsonLines().format(record("a request failed", error=error))
    told = json.loads(line)
    assert told["message"] == "a request failed" and told["level"] == "error" and told["error"] == "ValueError"
    assert "test_logs.py" in told["at"][0] and SECRET not in line and told["time"].endswith("+00:00")


@pytest.mark.parametrize("args", [("doc-1", LongspanError(SECRET)), ("doc-1", "is damaged")])
def test_errors_among_the_words_are_types(args):
    told = json.loads(JsonLines().format(record("%s cannot be read: %s", *args)))
    assert told["message"] == f"doc-1 cannot be read: {'is damaged' if args[1] == 'is damaged' else 'LongspanError'}"
    assert json.loads(JsonLines().format(record("100% full")))["message"] == "100% full"


def test_text_has_a_line_for_each_record():
    told = TextLines("%(levelname)s %(message)s").format(
        record("%s cannot be read: %s", "x", LongspanError("a\nERROR b"))
    )
    assert told == "ERROR x cannot be read: a ERROR b"


def test_all_that_a_server_says_is_json(tmp_path):
    """Also about a document that cannot be read."""
    server = Process(tmp_path / "documents", "--log-format", "json", "--length", "300")
    server.http.post("/v1/documents", files={"file": (f"{SECRET}.txt", f"{SECRET} " * 500)})
    wait_for(lambda: server.documents()[0]["status"] == "failed")
    with socket.create_connection(("127.0.0.1", server.http.base_url.port)) as connection:
        connection.sendall(f"{SECRET}\r\n\r\n".encode())
        connection.recv(100)
    code, rest = server.end()
    lines = [json.loads(line) for line in (server.log + rest).splitlines()]
    assert code == 0 and len(lines) == 3 and " at http://" in lines[0]["message"] and lines[0]["level"] == "info"
    assert (
        "cannot be read" in lines[1]["message"] and "Invalid" in lines[2]["message"] and SECRET not in json.dumps(lines)
    )
