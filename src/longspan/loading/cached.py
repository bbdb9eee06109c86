"""What lies in the user's cache of models and texts, and what can be brought there. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from longspan.loading.known import KNOWN, TEXTS, Known, fetched, home_of, models_folder

COPIES = "copies"  # the folder of copies of GGUF files
MANIFEST = "copy.json"  # says of which file a copy is


def about(model: Known) -> dict[str, Any]:
    """A model or a text that ``longspan fetch`` knows, as plain values; ``path`` is None if it is not here."""
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


def others() -> list[dict[str, Any]]:
    """All else in the cache, with the fields of ``about``: copies of GGUF files, and what longspan does not know."""
    models = models_folder()
    known = {home_of(each) for each in (*KNOWN.values(), *TEXTS.values())} | {models / COPIES}
    unknown = (path for path in _visible(models, models.with_name("texts")) if path not in known)
    copies = (path for each in _visible(models / COPIES) for path in _visible(each))
    return [*(_other(path.name, "", "", path) for path in unknown), *map(_copy, copies)]


def _copy(path: Path) -> dict[str, Any]:
    source = ""
    with suppress(OSError, ValueError, LookupError, TypeError):
        source = str(json.loads((path / MANIFEST).read_bytes())["source"])
    gone = "" if Path(source).is_file() else ", which is gone"
    title = f"copy of a GGUF file{gone}" if source else "a copy that is not whole"
    return _other(Path(source).name or path.parent.name, title, path.name, path)


def _other(name: str, title: str, form: str, path: Path) -> dict[str, Any]:
    size = sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())
    empty = dict.fromkeys(("hub", "licence", "sha256"))
    return {"name": name, "title": title, "form": form, "bytes": size, "path": str(path), **empty}


def _visible(*folders: Path) -> Iterator[Path]:
    """What lies in folders that may not be there, without what is being made."""
    for folder in folders:
        if folder.is_dir():
            yield from (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
