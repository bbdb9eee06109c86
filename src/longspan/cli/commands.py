"""The commands of ``longspan``: those of the library, and those that other packages register as entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

import longspan
from longspan.cli.ask import ask
from longspan.cli.calibrate import calibrate
from longspan.cli.chat import chat
from longspan.cli.doctor import doctor
from longspan.cli.documents import documents, verify
from longspan.cli.fetch import fetch
from longspan.cli.generate import generate
from longspan.cli.inspect import inspect
from longspan.cli.methods import methods
from longspan.cli.models import models
from longspan.cli.read import read
from longspan.cli.serve import serve
from longspan.errors import LongspanError
from longspan.install import pip_install

GROUP = "longspan.commands"
"""The group of entry points whose functions become commands: ``name = "package.module:function"``."""

IN_EVAL = ("analyze", "demo", "eval", "reproduce", "tune")
"""The commands of the package longspan-eval."""


class Commands(typer.core.TyperGroup):
    """A group whose error for a command of longspan-eval names that package if it is not installed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in IN_EVAL:
            raise LongspanError(f"`longspan {cmd_name}` requires longspan-eval: {pip_install('eval')}")
        return command


app = typer.Typer(
    name="longspan",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help wraps long lines; rich help truncates options
    context_settings={"help_option_names": ["-h", "--help"]},
)
OWN = (read, ask, chat, documents, verify, serve, generate, methods, inspect, doctor, calibrate, fetch, models)


def add(command: Callable[..., None], name: str | None = None) -> None:
    """Make a function a command, whose help ends with its examples."""
    lines = getattr(command, "examples", ())
    # After \b the lines are not wrapped into a paragraph.
    epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)]) if lines else None
    app.command(name, epilog=epilog)(command)


for command in OWN:
    add(command)
for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
    add(entry.load(), entry.name)


def _version(requested: bool) -> None:
    if requested:
        print(f"longspan {longspan.__version__}")
        raise typer.Exit()


@app.callback()
def group(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Let RoPE language models read far beyond their trained window, without training."""
