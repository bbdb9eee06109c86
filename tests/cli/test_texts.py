"""Texts that a command is given."""

from __future__ import annotations

import codecs
import io
from types import SimpleNamespace

from longspan.cli.texts import STDIN, read_text


def test_a_byte_order_mark_is_no_text(tmp_path, monkeypatch):
    data = codecs.BOM_UTF8 + b"One\r\ntwo"
    (tmp_path / "a.txt").write_bytes(data)
    assert read_text(tmp_path / "a.txt") == "One\ntwo"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read_text(STDIN) == "One\ntwo"
