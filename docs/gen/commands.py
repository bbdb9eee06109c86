"""The command line's own help as Markdown: a page for each command, and a table of them."""

from __future__ import annotations

import re
from typing import Any

import typer

from longspan.cli.commands import app


def pages(of: typer.Typer = app) -> dict[str, str]:
    """A page for each command by its path under ``docs``: what it does, arguments and options with their defaults."""
    return {f"cli/{name}.md": _section(f"longspan {name}", command) for name, command in _program(of).commands.items()}


def commands(of: typer.Typer = app) -> str:
    """A table of the commands with their pages, after the options of the program itself."""
    program = _program(of)
    lines = [*_table(_parameters(program)), "| command | |", "| --- | --- |"]
    for name, command in program.commands.items():
        first = _plain(command.help).partition(". ")[0].removesuffix(".")
        lines.append(f"| [`longspan {name}`](cli/{name}.md) | {first} |")
    return "\n".join(lines)


def _program(of: typer.Typer) -> Any:
    return typer.main.get_command(of)


def _parameters(command: Any) -> list[Any]:
    """Its arguments and options, without those that every program of Typer has."""
    return [p for p in command.params if p.name not in ("help", "install_completion", "show_completion")]


def _section(name: str, command: Any) -> str:
    parameters = _parameters(command)
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    shown = " ".join(_metavar(p) for p in arguments)
    lines = [f"# {name}", "", _plain(command.help), "", "```console"]
    lines += [" ".join(part for part in (f"$ {name}", shown, "[OPTIONS]") if part)]
    lines += [f"$ {line}" for line in getattr(command.callback, "examples", ())] + ["```"]
    return "\n".join([*lines, "", *_table(parameters)]) + "\n"


def _table(parameters: list[Any]) -> list[str]:
    if not parameters:
        return []
    rows = [f"| `{_name(p)}` | {_default(p)} | {_plain(p.help or '')} |" for p in parameters]
    return ["| | default | |", "| --- | --- | --- |", *rows, ""]


def _metavar(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _metavar(parameter).replace("|", "\\|")
    return " / ".join([*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or callable(value) or type(value).__name__ == "Sentinel" or value == "" or value == []:
        return ""
    return f"`{'yes' if value is True else 'no' if value is False else value}`"


def _plain(text: str) -> str:
    """Help without typer's own marks, safe in a table."""
    text = re.sub(r"(?<!`)\[(KEY|ADDRESS)[^\]]*\]", r"\\[\1]", text or "")
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")
