"""The program's commands: the library's own, and those that installed packages bring as entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

import longspan
from longspan.cli import calibrate, doctor, generate, inspect, methods
from longspan.errors import LongspanError

GROUP = "longspan.commands"
"""The entry points whose functions become commands: ``name = "package.module:function"``."""

IN_EVAL = ("analyze", "demo", "eval", "reproduce")
"""Commands of the package longspan-eval."""


class Commands(typer.core.TyperGroup):
    """Names the package of a command that is not installed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in IN_EVAL:
            raise LongspanError(f"`longspan {cmd_name}` is in longspan-eval: pip install 'longspan[eval]'")
        return found


app = typer.Typer(
    name="longspan",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help breaks lines where it has to, and cuts no option
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate.generate, methods.methods, inspect.inspect, doctor.doctor, calibrate.calibrate):
    app.command()(command)
for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
    app.command(entry.name)(entry.load())


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
