"""Docstrings in parts: the text of a class, and its parameters with what each one means."""

from __future__ import annotations

import inspect
import re

_PARAMETER = re.compile(r"    (\w+(?:, \w+)*): (.*)")


def text_of(owner: type) -> str:
    """A class's docstring without its sections of parameters, as Markdown.

    Raises:
        ValueError: the class has no docstring of its own.
    """
    if not vars(owner).get("__doc__"):
        raise ValueError(f"{owner.__name__} has no docstring")
    return re.split(r"\n(?:Args|Attributes):\n", inspect.cleandoc(owner.__doc__ or ""))[0].strip()


def parameters_of(owner: type) -> dict[str, str]:
    """What the ``Args`` section of a class says of each parameter, in one line each."""
    _, found, section = inspect.cleandoc(owner.__doc__ or "").partition("\nArgs:\n")
    if not found:
        return {}
    described: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        begins = _PARAMETER.fullmatch(line)
        if begins:
            names = begins[1].split(", ")
            described |= dict.fromkeys(names, begins[2])
        elif line.startswith("     "):
            described |= {name: f"{described[name]} {line.strip()}" for name in names}
        elif line.strip():
            break  # the next section
    return described
