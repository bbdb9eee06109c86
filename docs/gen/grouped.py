"""Docstrings as mkdocstrings reads them: parameters that share a line get one each, and plain tables stay plain."""

from __future__ import annotations

import re
from typing import Any

import griffe

_GROUP = re.compile(r"^ {4}((?:\w+, )+\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
_TABLE = re.compile(r"^={3,} [= ]+\n.*?^={3,} [= ]+$(?:\n.*?^={3,} [= ]+$)?", re.MULTILINE | re.DOTALL)


class Grouped(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _GROUP.sub(_apart, obj.docstring.value)
            obj.docstring.value = _TABLE.sub(lambda table: f"```text\n{table[0]}\n```", text)


def _apart(group: re.Match[str]) -> str:
    return "\n".join(f"    {name}: {group[2]}" for name in group[1].split(", "))
