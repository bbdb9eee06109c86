"""``longspan models``: the models and texts that can be fetched, and what lies in the user's cache."""

from __future__ import annotations

from longspan.cli import options
from longspan.cli.output import print_json, wide
from longspan.errors import printable
from longspan.terminal import Column, Sheet


@options.examples(
    "longspan models",
    "longspan models --json",
)
def models(as_json: options.Json = False, quiet: options.Quiet = False) -> None:
    """List the models and texts that `longspan fetch` knows, where they are, and what else the cache holds."""
    from longspan.loading.cached import about, others
    from longspan.loading.known import KNOWN, TEXTS

    known = [about(each) for each in (*KNOWN.values(), *TEXTS.values())]
    rows = [{**row, "fetch": True} for row in known] + [{**row, "fetch": False} for row in others()]
    if as_json:
        print_json(rows)
        return
    columns = [Column("name", style="cyan"), *map(Column, ("what", "form")), Column("MB", "right")]
    columns += map(Column, ("licence", "here"))
    fields = "name", "title", "form", "bytes", "licence", "path"
    shown = ({**row, "bytes": f"{row['bytes'] / 1e6:,.1f}"} for row in rows)
    wide().print(Sheet(columns, [tuple(printable(row[field] or "") for field in fields) for row in shown]))
