"""The commands that there are."""

from __future__ import annotations

from typing import Annotated

import typer

import longspan
from longspan.cli import (
    analyze,
    ask,
    calibrate,
    chat,
    demo,
    documents,
    eval,
    generate,
    inspect,
    methods,
    read,
    reproduce,
)
from longspan.cli.eval import with_address

__all__ = ["app", "with_address"]

app = typer.Typer(
    name="longspan",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help breaks lines where it has to, and cuts no option
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo.demo, generate.generate, methods.methods, inspect.inspect, calibrate.calibrate, analyze.analyze):
    app.command()(command)
app.command()(read.read)
app.command()(ask.ask)
app.command()(chat.chat)
app.command()(documents.documents)
app.command()(documents.verify)
app.command("eval")(eval.evaluate)
app.command()(reproduce.reproduce)


def _version(asked: bool) -> None:
    if asked:
        print(f"longspan {longspan.__version__}")
        raise typer.Exit()


@app.callback()
def group(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is, and exit.")
    ] = False,
) -> None:
    """Let RoPE language models read far beyond their trained window, without training."""
