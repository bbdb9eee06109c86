"""``longspan documents`` and ``longspan verify``: what is kept in a folder, and whether it is what was written."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli import options
from longspan.cli.output import notes, print_json, say, wide
from longspan.errors import DocumentError, LongspanError, printable
from longspan.terminal import Column, Sheet

if TYPE_CHECKING:
    from longspan.documents.folder import Folder
    from longspan.documents.manifest import Facts


@options.examples(
    "longspan methods | longspan read - --model bundled --out methods.longspan",
    "longspan documents",
    "longspan documents methods.longspan --json",
)
def documents(
    folder: Annotated[Path, typer.Argument(help="A folder of documents, or the folder of one.")] = Path("."),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """List the documents in a folder with their length, method, model, size and state."""
    from longspan.documents.folder import MANIFEST, READING, placed

    if not folder.is_dir():
        raise LongspanError(f"{folder}: this folder does not exist")

    def is_one(path: Path) -> bool:
        try:
            return any((placed(path) / name).is_file() for name in (MANIFEST, READING))
        except PermissionError:  # somebody else's folder, such as lost+found
            return False

    rows = [_row(place) for place in ([folder] if is_one(folder) else sorted(filter(is_one, folder.iterdir())))]
    if as_json:
        print_json({"folder": str(folder), "documents": rows})
        return
    if not rows:
        say(notes(quiet), f"{folder}: no document in it; `longspan read` makes one")
        return
    columns = [Column("document", style="cyan"), Column("tokens", "right"), Column("method"), Column("model")]
    columns += [Column("MiB", "right"), Column("texts"), Column("state")]
    shown = ((r | {"tokens": f"{r['tokens']:,}", "MiB": f"{r['bytes'] / 2**20:,.1f}"}) for r in rows)
    cells = [tuple(printable(r[column.head]) for column in columns) for r in shown]
    console = wide()
    console.print(Sheet(columns, cells))
    for row in rows:  # a sentence would fill the table
        if row["reason"]:
            say(console, printable(f"{row['document']}: {row['reason']}"))


@options.examples(
    "longspan methods | longspan read - --model bundled --out methods.longspan",
    "longspan verify methods.longspan",
)
def verify(document: options.DocumentArgument, as_json: options.Json = False, quiet: options.Quiet = False) -> None:
    """Compare all checksums of a document with its files. This requires no model."""
    from longspan.documents import verify as verified
    from longspan.documents.folder import placed

    manifest = verified(document)
    facts, size = manifest.facts, _size(placed(document))
    if as_json:
        about = {"document": str(document), "whole": True, "tokens": facts.tokens, "segments": len(manifest.segments)}
        print_json({**about, "bytes": size})
    else:
        print(f"{document}: whole, {facts.tokens:,} tokens, {size / 2**20:,.1f} MiB")


def _row(place: Path) -> dict[str, Any]:
    from longspan.documents.folder import Folder, placed
    from longspan.documents.method import method_of
    from longspan.methods.parse import written

    folder, row = Folder(placed(place)), {"document": place.name or str(place), "tokens": 0, "method": "", "model": ""}
    row |= {"bytes": 0, "texts": "", "reason": None}
    try:
        row["bytes"] = _size(folder.path)
        whole = folder.has_document()
        manifest = folder.manifest() if whole else folder.unfinished()
        assert manifest is not None
        facts = manifest.facts
        state = f"whole{_append_in(folder, facts.tokens)}" if whole else f"read up to {manifest.tokens:,}"
        name, row["texts"] = written(method_of(facts)), _texts(facts)
        return {**row, "tokens": facts.tokens, "method": name, "model": facts.source or facts.model, "state": state}
    except (DocumentError, OSError) as error:
        return {**row, "state": "cannot be opened", "reason": str(error).removeprefix(f"{folder}: ")}


def _texts(facts: Facts) -> str:
    """The name of the first text of a document, and how many there are beside it."""
    names = list(dict.fromkeys(one.name for one in facts.sources if one.name))
    return "".join(names[:1]) + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")


def _append_in(folder: Folder, tokens: int) -> str:
    """What is said of an append that was stopped, in the folder of a document of so many tokens; nothing if none was.

    The document can be opened in any case.
    """
    try:
        begun = folder.unfinished()
    except (DocumentError, OSError):
        return "; an append was interrupted, and its saved part cannot be used"
    if begun is None or begun.tokens <= tokens:
        return ""
    return f"; an append was interrupted at {begun.tokens:,} of {begun.facts.tokens:,}"


def _size(place: Path) -> int:
    total = 0
    for file in place.iterdir():
        with suppress(FileNotFoundError):  # who writes a document removes files of it
            total += file.stat().st_size if file.is_file() else 0
    return total
