"""``longspan doctor``: will it fit, how fast, which method?"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from longspan.cli import options
from longspan.cli.output import hushed, notes, print_json, say
from longspan.errors import LongspanError
from longspan.loading.models import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Options that say something of a model.
_OF_MODEL = ("method", "window", "calibration", "seconds", "dtype", "weights", "device")


@options.examples(
    "longspan doctor",
    "longspan doctor bundled --length 4x",
)
def doctor(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help=f"{options.MODEL} Default: check the machine alone.")] = None,
    length: Annotated[
        str | None,
        typer.Option(help="The length of text and answer in tokens (131072, 200k, 1M) or windows (64x); default: 8x."),
    ] = None,
    method: options.MethodOption = "auto",
    window: options.Window = None,
    calibration: options.CalibrationFile = None,
    kv_dir: Annotated[
        Path | None,
        typer.Option(help="The folder for a cache on disk, best a fast one; default: the folder for temporary files."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="The most seconds for measuring; if it takes more, there is no estimate; default: no limit."),
    ] = None,
    dtype: options.Dtype = "auto",
    weights: options.Weights = "auto",
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check whether a text fits a model on this machine, how fast the model reads it, and which method to use.

    The model reads a part of such a text, for seconds or minutes. The report ends with a recommendation and its
    command. The exit code is 1 if the model cannot be extended, if the text does not fit or is longer than the method
    is set for, if the time cannot be estimated, or if the output for a short prompt is not what the method states.
    """
    if length is not None:
        options.length("--length", length, window=1)  # what cannot be is refused before a model is loaded
    chosen = options.method_or_auto(method, (), None)
    if model is None and length is not None:
        raise LongspanError("--length requires a model: longspan doctor MODEL --length ...")
    if model is None and (given := options.given(context, _OF_MODEL)):
        raise LongspanError(f"{given}: valid only with a model: longspan doctor MODEL ...")
    loaded = None
    if model is not None:
        if dtype == weights == "auto":
            _refuse_too_large(Path(model))
        loaded = load_model(model, window=window, dtype=dtype, weights=weights, device=device, quiet=quiet)
    import longspan

    try:
        with hushed(quiet):
            found = longspan.diagnose(
                loaded,
                length=None if length is None or loaded is None else _tokens(length, window, loaded),
                method=chosen,
                window=window,
                calibration=calibration,
                kv_dir=kv_dir,
                seconds=seconds,
                say=partial(say, notes(quiet)),
                name=model or "MODEL",
                options=" ".join(
                    f"--{k} {v}" for k, v in (("dtype", dtype), ("weights", weights), ("device", device)) if v != "auto"
                ),
            )
    except ValueError as error:
        raise LongspanError(re.sub(r"^length\b", "--length", str(error))) from error
    if as_json:
        print_json(found.to_dict())
    else:
        Console(highlight=False).print(found)
    if not found.ok:
        raise typer.Exit(1)


def _refuse_too_large(folder: Path) -> None:
    """Raise for a model folder whose weights do not fit into memory, before that is found out by loading them."""
    import torch

    from longspan.machine.memory import free_memory

    # Some folders also have the same weights in one file of another name, which transformers does not load.
    shards = list(folder.glob("model*.safetensors")) or list(folder.glob("*.safetensors"))
    weights, free = sum(file.stat().st_size for file in shards), free_memory(torch.device("cpu"))
    if free is not None and weights > free:
        raise LongspanError(
            f"{folder}: its weights take {weights / 2**30:,.1f} GiB, but only {free / 2**30:,.1f} GiB of memory are "
            "free; use a smaller model or a machine with more memory"
        )


def _tokens(length: str, window: int | None, model: PreTrainedModel) -> int:
    from longspan.hf import inspect

    in_windows = length.strip().lower().endswith("x")
    return options.length("--length", length, inspect(model, "full", window=window).window if in_windows else 1)
