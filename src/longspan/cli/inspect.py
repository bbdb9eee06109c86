"""``longspan inspect``: report how a method would be attached to a model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from longspan.cli.options import Json, Quiet, hushed, load_model, method_or_auto, print_json, refusals
from longspan.cli.parameters import CalibrationFile, MethodOption, ModelArgument, Parameters, ScaledAngles, Window


def inspect(
    model: ModelArgument,
    method: MethodOption = "dca",
    window: Window = None,
    settings: Parameters = None,
    angles: ScaledAngles = None,
    calibration: CalibrationFile = None,
    length: Annotated[
        int | None, typer.Option(help="The longest text with its answer, in tokens, for --method auto.", min=1)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how a method would extend a model: layers, window, parameters, memory per 1,000 tokens, warnings."""
    selected = method_or_auto(method, settings or (), angles)
    loaded = load_model(model, window=window, device="cpu")
    import longspan

    with hushed(quiet), refusals():
        report = longspan.inspect(loaded, selected, window=window, length=length, calibration=calibration)
    if as_json:
        print_json(report.to_dict())
    else:
        Console(highlight=False).print(report)
