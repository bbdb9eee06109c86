"""``longspan demo``: the bundled model, read far beyond its window."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longspan.bundled import FOLDER
from longspan.cli.options import Json, Quiet, examples
from longspan.cli.output import print_json
from longspan.errors import LongspanError
from longspan.loading.models import quiet_transformers


@examples(
    "longspan demo --prompts 3 --lengths 1x,4x",
    "longspan demo --book",
)
def demo(
    prompts: Annotated[int, typer.Option(help="The number of prompts per cell.")] = 5,
    lengths: Annotated[str, typer.Option(help="Lengths in windows of the model.")] = "1x,2x,4x,8x",
    methods: Annotated[
        str | None,
        typer.Option(
            help="The methods, such as stock,yarn,dca; default: stock and all but full, string and infllm, with "
            "longheads:score=bounds."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the prose and the pass keys.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="The folder for results.json and heatmap.png.")] = Path("longspan-demo"),
    book: Annotated[
        bool,
        typer.Option(
            "--book",
            help="Instead, fetch a real language model (98 MB) and a play, read the play at twice the model's window, "
            "and ask for facts that were hidden in it.",
        ),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hide a pass key and facts in long prose, and measure which methods find them at up to 8 times the window."""
    page = Console(highlight=False, stderr=as_json, quiet=as_json and quiet)
    if book:
        from longspan_eval.studies import book_demo

        body = book_demo.run(page, quiet=quiet)
        if as_json:
            print_json(body)
        return
    from longspan_eval.spec import split_specs
    from longspan_eval.studies import demo as show

    quiet_transformers()
    settings = show.DemoSettings(
        prompts=prompts,
        multiples=tuple(_multiple(text) for text in lengths.split(",")),
        methods=show.methods_shown() if methods is None else tuple(split_specs(methods)),
        seed=seed,
    )
    if not (FOLDER / "model.safetensors").is_file():
        raise LongspanError("the bundled model is not part of this installation")
    body = show.run(settings, out, page, brief=quiet)
    if as_json:
        print_json(body)


def _multiple(text: str) -> float:
    number, x, rest = text.strip().partition("x")
    try:
        value = float(number) if x and not rest else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value <= 10_000:  # without an x it is tokens in other commands
        raise LongspanError(f"--lengths takes multiples of the window such as 1x,4x,16x, not {text.strip()!r}")
    return value
