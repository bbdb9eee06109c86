"""``longspan inspect``: report how a method would be attached to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longspan.cli.options import Json, Quiet, hushed, load_model, method_or_auto, print_json
from longspan.errors import LongspanError


def inspect(
    model: Annotated[str, typer.Argument(help="A model folder, a hub name, or 'bundled'.")],
    method: Annotated[
        str, typer.Option(help="A method, see `longspan methods`; with parameters: dca:chunk_size=256; or 'auto'.")
    ] = "dca",
    window: Annotated[
        int | None, typer.Option(help="The trained window in tokens; default: from the config.", min=1)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the method; repeatable.")
    ] = None,
    angles: Annotated[str | None, typer.Option(help="Scaled angles for the method: pi, ntk, ...")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Reduced scores, a file of `longspan calibrate`.")] = None,
    length: Annotated[
        int | None, typer.Option(help="The longest text in tokens; 'auto' selects a method by it.", min=1)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how a method would extend a model: layers, window, parameters, memory per 1,000 tokens, warnings."""
    selected = method_or_auto(method, settings or (), angles)
    loaded = load_model(model, window=window, device="cpu")
    import longspan

    try:
        with hushed(quiet):
            report = longspan.inspect(loaded, selected, window=window, length=length, calibration=calibration)
    except ValueError as error:
        raise LongspanError(str(error)) from error
    if as_json:
        print_json(report.to_dict())
    else:
        Console(highlight=False).print(report)
