"""Samples on disk as they come: one JSON object a line, only ever appended to, so that a run can be taken up again."""

from __future__ import annotations

import errno
import json
import lzma
import math
import os
from contextlib import suppress
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import IO, Any

from longspan.errors import LongspanError
from longspan_eval.sample import NOT_FINITE, Sample, finite

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has no such locks; there two runs at once into one file are the user's to avoid
    fcntl = None

_FIELDS = {f.name for f in fields(Sample)}
_NEEDED = {f.name for f in fields(Sample) if f.default is MISSING and f.default_factory is MISSING} | {"loss"}
_WAY_OUT = "mend or delete the line, or give another --out"
# Left out of a line if a sample has none.
_IF_ANY = ("filler", "task", "tokens", "references", "figures", "kv_tier", "threads")


def read_samples(path: Path) -> dict[str, Sample]:
    """The samples of a file by key; of two with one key the later. A last line that was cut off is left out.

    Args:
        path: a journal, or with a name that ends in ``.xz`` one that was compressed; without a file there are none.

    Raises:
        LongspanError: a line before the last holds no sample, or a compressed file is not whole.
    """
    if not path.exists():
        return {}
    data = path.read_bytes()
    if path.suffix == ".xz":
        try:
            data = lzma.decompress(data)
        except lzma.LZMAError as error:
            raise LongspanError(
                f"{path}: this is not a complete xz file ({error}); fetch it again or delete it"
            ) from error
    return _parse(path, data)[0]


class Journal:
    """The samples of a file, open for more; one process at a time.

    Args:
        path: made if it is not there. A last line that was cut off is removed.

    Raises:
        LongspanError: another process writes to it, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file: IO[bytes] = path.open("a+b", buffering=0)
        try:
            self._lock()
            self._file.seek(0)
            data = self._file.read()
            self.samples, whole = _parse(self._path, data)
            if whole < len(data):
                self._file.truncate(whole)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LongspanError(f"{self._path}: another run is writing to it; wait for it or stop it") from error

    def append(self, key: str, sample: Sample) -> None:
        """Keep a sample. When this returns it is out of this process's hands: killing it cannot lose the sample.

        Raises:
            OSError: there is no room for it; the samples before it are there, and no part of this one.
        """
        line = _line(key, sample)
        begun = self._file.seek(0, os.SEEK_END)
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(begun)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self.samples[key] = sample

    def clear(self) -> None:
        """Remove all samples."""
        self._file.truncate(0)
        self.samples = {}

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _line(key: str, sample: Sample) -> bytes:
    body: dict[str, Any] = {"key": key, **asdict(sample)}
    body["loss"], body["seconds"] = round(sample.loss, 6), round(sample.seconds, 4)
    for name in _IF_ANY:
        if not body[name]:
            del body[name]
    return json.dumps(finite(body), allow_nan=False).encode() + b"\n"


def _parse(path: Path, data: bytes) -> tuple[dict[str, Sample], int]:
    """The samples in a file's bytes, and how many bytes hold whole lines."""
    samples: dict[str, Sample] = {}
    whole = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:whole].split(b"\n")[:-1], 1):
        try:
            if not line.strip():
                raise ValueError("it is empty")
            body = json.loads(line)
            if not isinstance(body, dict):
                raise ValueError("it is not a JSON object")
            key = body.pop("key", None)
            if not isinstance(key, str):
                raise ValueError("its key is missing" if key is None else "its key is not a text")
            if unknown := body.keys() - _FIELDS:
                raise ValueError(f"it has {', '.join(sorted(unknown))}, which no sample has")
            if missing := _NEEDED - body.keys():
                raise ValueError(f"it has no {', '.join(sorted(missing))}")
            if body["loss"] is None:
                body["loss"] = math.nan
                if body.get("scored") and body.get("error") is None:  # from before such a loss was an error
                    body["error"] = NOT_FINITE
            body["references"] = tuple(body.get("references", ()))
            body["figures"] = {
                name: math.nan if value is None else float(value) for name, value in body.get("figures", {}).items()
            }
            samples[key] = Sample(**body)
        except RecursionError:
            raise LongspanError(f"{path}: line {number} holds no sample (it is nested too deep); {_WAY_OUT}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LongspanError(f"{path}: line {number} holds no sample ({error}); {_WAY_OUT}") from error
    return samples, whole
