"""The structures that ``structs.h`` declares: its text is read here, and says how they are packed.

A compiler may leave gaps between fields, so it is told the sizes and compares them (``layout.c``).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_STRUCT = re.compile(r"typedef struct \{(.*?)\} (\w+);", re.DOTALL)
_FIELD = re.compile(r"(?P<pointer>\*?)(?P<name>\w+)(?P<sizes>(?:\[\d+\])*)(?P<open>\[\])?")


class Struct:
    """One structure: its fields in order, each with its code for ``struct``, and how many values it takes.

    An array that is open at the end is no part of it: what it holds is packed behind.

    Attributes:
        pack: the structure as bytes, from every field by its name: a number, the numbers of an array, or another one
            packed. ``TypeError``: a field is missing, or there is none of a name, or an array has another number of
            values.
    """

    def __init__(self, name: str, fields: Mapping[str, tuple[str, int]]) -> None:
        self.name, self.fields = name, dict(fields)
        self._packed = struct.Struct("=" + "".join(code for code, _ in self.fields.values()))
        self.size = self._packed.size
        values = ", ".join(
            field if count == 1 else f"*({field} if len({field}) == {count} else wrong({field!r}, {field}))"
            for field, (_, count) in self.fields.items()
        )
        # A function of these very arguments takes a third of the time of one that goes through fields.
        self.pack: Callable[..., bytes] = eval(
            f"lambda *, {', '.join(self.fields)}: pack({values})", {"pack": self._packed.pack, "wrong": self._wrong}
        )
        self.pack.__qualname__ = f"{name}.pack"  # for errors

    def _wrong(self, field: str, values: Sequence[Any]) -> NoReturn:
        raise TypeError(f"{self.name}.{field} has {self.fields[field][1]} values, not {len(values)}")

    def first(self, *names: str) -> struct.Struct:
        """How its first fields are packed, value by value; they are named so that no other order goes unseen."""
        if tuple(self.fields)[: len(names)] != names:
            raise TypeError(f"{self.name} begins with {list(self.fields)[: len(names)]}, not {list(names)}")
        return struct.Struct("=" + "".join(self.fields[name][0] for name in names))


def _declared(text: str) -> dict[str, Struct]:
    found: dict[str, Struct] = {}
    codes = {"int64_t": "q", "float": "f", "double": "d"}
    for body, name in _STRUCT.findall(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)):
        fields: dict[str, tuple[str, int]] = {}
        for line in filter(None, map(str.strip, body.split(";"))):
            kind, _, names = line.removeprefix("const ").partition(" ")
            for one in names.split(","):
                field = _FIELD.fullmatch(one.strip())
                assert field is not None, f"{name}: {line}"
                if field["open"]:
                    continue
                count = math.prod(map(int, re.findall(r"\d+", field["sizes"])))
                code = "Q" if field["pointer"] else codes[kind]
                fields[field["name"]] = (code if count == 1 else f"{count}{code}", count)
        found[name] = Struct(name, fields)
        codes[name] = f"{found[name].size}s"
    return found


ALL = _declared((Path(__file__).parent / "src" / "structs.h").read_text(encoding="utf-8"))
