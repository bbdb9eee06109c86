"""A benchmark's samples: compressed in the archive, a plain journal while they come.

An archive for each length, ``samples-512.jsonl.xz`` with the length in tokens, holds what has been measured and is what
the repository has. A run appends to ``samples.jsonl`` beside them, line by line, so that killing it loses nothing; what
is in both counts once, the journal's later. At its end the run packs: the samples of a length go into a new archive,
which takes the old one's place at once, and then the journal is emptied. Killed in between, it leaves samples that are
in both.
"""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from longspan_eval.journal import Journal, read_samples
from longspan_eval.sample import Sample

ARCHIVES, JOURNAL = "samples-*.jsonl.xz", "samples.jsonl"


def archive(length: int) -> str:
    """The name of the file with the samples of ``length`` tokens."""
    return ARCHIVES.replace("*", str(length))


def _packed(folder: Path) -> dict[str, Sample]:
    files = sorted(folder.glob(ARCHIVES))
    return {key: sample for file in files for key, sample in read_samples(file).items()}


def read(folder: Path) -> dict[str, Sample]:
    """All samples of a folder by key.

    Raises:
        LongspanError: a file is damaged.
    """
    return {**_packed(folder), **read_samples(folder / JOURNAL)}


class Samples:
    """The samples of a folder, open for more; one process at a time.

    Attributes:
        samples: by key.

    Raises:
        LongspanError: another process writes to them, or a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = Journal(folder / JOURNAL)  # its lock is that of the archives too
        try:
            self.samples = {**_packed(folder), **self._journal.samples}
        except BaseException:
            self._journal.close()
            raise

    def append(self, key: str, sample: Sample) -> None:
        """Keep a sample. When this returns, killing the process cannot lose it."""
        self._journal.append(key, sample)
        self.samples[key] = sample

    def pack(self) -> None:
        """Put what the journal holds into the archives, and empty it."""
        lengths = {sample.length for sample in self._journal.samples.values()}
        if not lengths:
            return
        with TemporaryDirectory(prefix=".packing-", dir=self._folder) as folder:
            for length in sorted(lengths):
                plain, packed = Path(folder) / JOURNAL, Path(folder) / archive(length)
                with Journal(plain) as journal:
                    for key, sample in self.samples.items():
                        if sample.length == length:
                            journal.append(key, sample)
                # In one order the same samples are the same bytes, which git sees as no change.
                lines = sorted(plain.read_text(encoding="utf-8").splitlines(keepends=True), key=_place)
                plain.unlink()
                with packed.open("wb") as file:
                    file.write(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(packed, self._folder / packed.name)
        self._journal.clear()

    def close(self) -> None:
        self._journal.close()

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _place(line: str) -> tuple[Any, ...]:
    """Where a sample stands in the archive: beside others of the same prompt, which compresses best."""
    sample = json.loads(line)
    prompt = [str(sample.get(name)) for name in ("task", "filler", "seed", "depth")]
    return *prompt, sample["length"], sample["method"], sample["key"]
