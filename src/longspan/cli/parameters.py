"""Arguments and options that several commands have; those of every command are in ``options``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "A model folder, a hub name, or 'bundled'."

ModelArgument = Annotated[str, typer.Argument(help=_MODEL)]
ModelOption = Annotated[str, typer.Option(help=_MODEL)]
MethodOption = Annotated[
    str,
    typer.Option(
        help="A method, such as dca or, with parameters, dca:chunk_size=256; 'auto' chooses one. `longspan methods` "
        "lists the methods."
    ),
]
Parameters = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the method; repeatable.")
]
ScaledAngles = Annotated[
    str | None,
    typer.Option(help="Scaled angles for the method: pi, ntk, dynamic-ntk or yarn; default: the method's own."),
]
CalibrationFile = Annotated[
    Path | None, typer.Option(help="A file of reduced scores, written by `longspan calibrate`; default: exact scores.")
]
Window = Annotated[int | None, typer.Option(help="The trained window in tokens; default: from the config.", min=1)]
Dtype = Annotated[
    str, typer.Option(help="The dtype of the weights: float32, bfloat16 or float16; auto keeps the checkpoint's.")
]
Device = Annotated[
    str,
    typer.Option(help="The device of the model: cpu, cuda, ...; auto is a CUDA GPU if there is one, else the CPU."),
]
KvTier = Annotated[str, typer.Option(help="The storage of the cache: device, host or disk.")]
AnswerTokens = Annotated[int, typer.Option(help="The largest length of an answer in tokens.", min=1)]

# Commands on a document.
DocumentArgument = Annotated[Path, typer.Argument(help="The folder of a document, written by `longspan read`.")]
ReaderModel = Annotated[
    str | None, typer.Option(help="The model that read the document; default: the one that the document names.")
]
Verify = Annotated[bool, typer.Option("--verify", help="Compare all checksums of the document first.")]
