"""``longspan methods``: list the methods with their parameters."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli import options
from longspan.cli.output import notes, print_json, say, wide
from longspan.errors import LongspanError, check_count
from longspan.terminal import Column, Sheet

if TYPE_CHECKING:
    from longspan.methods import Method


WHAT = 62  # characters of the line about a method in the short list, which fits 80 columns


@options.examples(
    "longspan methods --short",
    "longspan methods --window 4096",
)
def methods(
    window: Annotated[
        int | None, typer.Option(help="Show the defaults for a model with this trained window, in tokens.", min=1)
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="Only names and a line about each.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """List the methods with a description, their parameters and defaults, and their papers."""
    from longspan.methods import METHODS

    if window is not None:
        check_count("--window", window)
    if short:
        if window is not None:
            raise LongspanError("--short lists no parameters, which --window is for; leave one of them out")
        about = [{"name": name, "what": _sentence(cls)} for name, cls in METHODS.items()]
        lines = [(row["name"], _line(row["what"])) for row in about]
        sheet = Sheet([Column("", style="cyan"), Column("")], lines, headed=False)
        print_json(about) if as_json else wide().print(sheet)
        return
    rows = [describe(name, window) for name in METHODS]
    if as_json:
        print_json(rows)
        return
    columns = [Column("method", style="cyan"), Column("description"), Column("parameters"), Column("paper")]
    cells = [
        (row["name"], row["what"], row.get("error") or _parameters(row["parameters"], window), row["paper"])
        for row in rows
    ]
    wide().print(Sheet(columns, cells))
    if window is None:
        say(notes(quiet), "The default of a parameter without a value depends on the model's window; see --window.")


def describe(name: str, window: int | None = None) -> dict[str, Any]:
    """A method as a dictionary: ``name``, ``what`` (one sentence), ``parameters``, ``paper``.

    A parameter that depends on the window is None without ``window``. A method that does not support ``window`` has
    the reason in ``error``, and its parameters without a window.
    """
    from longspan.methods import METHODS

    cls = METHODS[name]
    row = {"name": name, "what": _sentence(cls), "parameters": plain(cls()), "paper": cls.paper}
    if window is None:
        return row
    try:
        return {**row, "parameters": plain(cls().resolve(window))}
    except ValueError as error:
        return {**row, "error": f"not available for a window of {window:,}: {error}"}


def plain(method: Method) -> dict[str, Any]:
    """The parameters of a method and of its angles in one flat dictionary."""
    parameters = method.parameters()
    angles = parameters.pop("angles")
    return parameters | {key: value for key, value in vars(angles).items() if key not in parameters}


def _sentence(cls: type[Method]) -> str:
    """A description of the method: the first paragraph of its module, or of its class if they share the module."""
    from longspan.methods import METHODS

    module = sys.modules[cls.__module__]
    alone = sum(other.__module__ == cls.__module__ for other in METHODS.values()) == 1
    first = inspect.cleandoc((module.__doc__ if alone else cls.__doc__) or "").split("\n\n")[0]
    return " ".join(first.split()).replace("``", "")


def _line(what: str) -> str:
    """A description, or its first clause, in one line of the short list."""
    return textwrap.shorten(what if len(what) <= WHAT else re.split("[,;] ", what)[0], WHAT, placeholder=" ...")


def _parameters(values: dict[str, Any], window: int | None) -> str:
    def shown(key: str, value: Any) -> str:
        return key if value is None else f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"

    # With a window, a parameter that is still None has no effect (target_length, once it has set the group).
    return "\n".join(shown(k, v) for k, v in values.items() if window is None or v is not None)
