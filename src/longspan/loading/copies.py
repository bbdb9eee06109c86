"""Copies of a GGUF file in the form that transformers loads fast, in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from longspan import files
from longspan.loading.cached import COPIES, MANIFEST
from longspan.loading.fetch import sha256_of
from longspan.loading.known import models_folder

_FORMAT = 2  # of copies; those of another one are made anew


def copy_of(file: Path, kind: str, make: Callable[[Path], None]) -> Path:
    """A folder with what ``make`` makes of a file, made once and then kept.

    A copy is made anew if the file's size or time differ, if it was made under another release of transformers, or if
    the hashes of its own files do.

    Args:
        file: the GGUF file.
        kind: which of its copies, as the name of a folder.
        make: writes the copy into an empty folder.

    Raises:
        OSError: the copy cannot be written.
    """
    path = file.resolve()
    folder = models_folder() / COPIES / hashlib.sha256(str(path).encode()).hexdigest()[:16] / kind
    about = _about(path)
    if _holds(folder, about):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".making-") as temporary:
        made = Path(temporary) / kind
        made.mkdir()
        make(made)
        sums = {each.name: sha256_of(each) for each in sorted(made.iterdir())}
        files.write(made / MANIFEST, json.dumps({**about, "sha256": sums}, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.rename(made, folder)
        except OSError:
            if not _holds(folder, about):  # else another process has made it meanwhile
                raise
    return folder


def _about(path: Path) -> dict[str, Any]:
    import transformers

    status = path.stat()
    return {
        "format": _FORMAT,
        "transformers": transformers.__version__,
        "source": str(path),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }


def _holds(folder: Path, about: dict[str, Any]) -> bool:
    """Whether a folder has a complete copy of this file."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        kept = json.loads((folder / MANIFEST).read_bytes())
        sums = kept.pop("sha256")
        return bool(kept == about and sums and all(sha256_of(folder / name) == sums[name] for name in sums))
    return False
