"""``longspan inspect``: report how a method would be attached to a model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from longspan.cli import options
from longspan.cli.output import hushed, print_json, refusals
from longspan.loading.models import load_model


@options.examples(
    "longspan inspect bundled",
    "longspan inspect bundled --length 4096",
)
def inspect(
    model: options.ModelArgument,
    method: options.MethodOption = "auto",
    window: options.Window = None,
    settings: options.Parameters = None,
    angles: options.ScaledAngles = None,
    calibration: options.CalibrationFile = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="The longest text with its answer, in tokens: auto chooses by it; pi, ntk, yarn and self-extend are "
            "set for it.",
            min=1,
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show how a method would extend a model: layers, window, parameters, memory per 1,000 tokens, warnings."""
    selected = options.method_or_auto(method, settings or (), angles)
    loaded = load_model(model, window=window, device="cpu", quiet=quiet)
    import longspan

    with hushed(quiet), refusals():
        report = longspan.inspect(loaded, selected, window=window, length=length, calibration=calibration)
    if as_json:
        print_json(report.to_dict())
    else:
        Console(highlight=False).print(report)
