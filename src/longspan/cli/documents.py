"""``longspan documents`` and ``longspan verify``: what is kept in a folder, and whether it is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.options import Json, Quiet, notes, print_json, say, wide
from longspan.errors import DocumentError, LongspanError, printable
from longspan.tables import Column, Sheet


def documents(
    folder: Annotated[Path, typer.Argument(help="A folder with documents in it.")] = Path("."),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the documents in a folder: their length, method, model and size, and readings that were not finished."""
    from longspan.documents.folder import MANIFEST, READING

    if not folder.is_dir():
        raise LongspanError(f"{folder}: there is no such folder")
    places = sorted(p for p in folder.iterdir() if any((p / name).is_file() for name in (MANIFEST, READING)))
    rows = [_row(place) for place in places]
    if as_json:
        print_json({"folder": str(folder), "documents": rows})
        return
    if not rows:
        say(notes(quiet), f"{folder}: no document in it; `longspan read` makes one")
        return
    columns = [Column("document", style="cyan"), Column("tokens", "right"), Column("method"), Column("model")]
    columns += [Column("MiB", "right"), Column("state")]
    cells = [
        tuple(map(printable, (r["document"], f"{r['tokens']:,}", r["method"], r["model"], _mib(r), r["state"])))
        for r in rows
    ]
    wide().print(Sheet(columns, cells))


def verify(
    document: Annotated[Path, typer.Argument(help="A document, as `longspan read` made it.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read every byte of a document and compare every checksum. It takes no model."""
    from longspan.documents import verify as verified

    manifest = verified(document)
    facts, size = manifest.facts, _size(document)
    if as_json:
        about = {"document": str(document), "whole": True, "tokens": facts.tokens, "segments": len(manifest.segments)}
        print_json({**about, "bytes": size})
    else:
        print(f"{document}: whole, {facts.tokens:,} tokens, {size / 2**20:,.1f} MiB")


def _mib(row: dict[str, Any]) -> str:
    return f"{row['bytes'] / 2**20:,.1f}"


def _row(place: Path) -> dict[str, Any]:
    from longspan.documents.facts import method_of
    from longspan.documents.folder import Folder
    from longspan.methods.parse import written

    own, made = Folder(place), {"document": place.name, "tokens": 0, "method": "", "model": "", "bytes": _size(place)}
    try:
        manifest = own.manifest() if own.has_document() else own.unfinished()
        assert manifest is not None
        facts, read = manifest.facts, manifest.segments[-1].stop if manifest.segments else 0
        state = "whole" if own.has_document() else f"read up to {read:,}"
        name = written(method_of(facts))
        return {**made, "tokens": facts.tokens, "method": name, "model": facts.source or facts.model, "state": state}
    except (DocumentError, OSError) as error:
        return {**made, "state": str(error).removeprefix(f"{own}: ")}


def _size(place: Path) -> int:
    return sum(file.stat().st_size for file in place.iterdir() if file.is_file())
