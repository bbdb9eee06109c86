"""``longspan methods``: what there is."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.options import Json, Quiet, notes, print_json, say, wide
from longspan.errors import check_count
from longspan.tables import Column, Sheet

if TYPE_CHECKING:
    from longspan.methods import Method


def methods(
    window: Annotated[
        int | None, typer.Option(help="Show the defaults for a model of this window, in tokens.", min=1)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the methods: what each does, its parameters with their defaults, its paper."""
    from longspan.methods import METHODS

    if window is not None:
        check_count("--window", window)
    rows = [describe(name, window) for name in METHODS]
    if as_json:
        print_json(rows)
        return
    columns = [Column("method", style="cyan"), Column("what it does"), Column("parameters"), Column("paper")]
    cells = [
        (row["name"], row["what"], row.get("error") or _parameters(row["parameters"], window), row["paper"])
        for row in rows
    ]
    wide().print(Sheet(columns, cells))
    if window is None:
        say(notes(quiet), "A parameter without a value follows the model's window; --window N shows it for one.")


def describe(name: str, window: int | None = None) -> dict[str, Any]:
    """A method as plain values: its name, one sentence, its parameters (None: follows the window), its paper.

    One that cannot be at this window has the reason, as ``error``, and the parameters that it has without a window.
    """
    from longspan.methods import METHODS

    kind = METHODS[name]
    made = {"name": name, "what": _sentence(kind), "parameters": plain(kind()), "paper": kind.paper}
    if window is None:
        return made
    try:
        return {**made, "parameters": plain(kind().resolve(window))}
    except ValueError as error:
        return {**made, "error": f"not at a window of {window:,}: {error}"}


def plain(method: Method) -> dict[str, Any]:
    """A method's parameters and its angles' in one flat dictionary of plain values."""
    own = method.parameters()
    angles = own.pop("angles")
    return own | {key: value for key, value in vars(angles).items() if key not in own}


def _sentence(kind: type[Method]) -> str:
    """What the method does, from its module where that is the method's own page, else from its class."""
    from longspan.methods import METHODS

    module = sys.modules[kind.__module__]
    alone = sum(other.__module__ == kind.__module__ for other in METHODS.values()) == 1
    first = inspect.cleandoc((module.__doc__ if alone else kind.__doc__) or "").split("\n\n")[0]
    return " ".join(first.split()).replace("``", "")


def _parameters(values: dict[str, Any], window: int | None) -> str:
    def shown(key: str, value: Any) -> str:
        return key if value is None else f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"

    # With a window every parameter that counts has a value; what is still None has been used up (a target length).
    return "\n".join(shown(k, v) for k, v in values.items() if window is None or v is not None)
