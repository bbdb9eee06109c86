"""A benchmark's samples: compressed where they are kept, a plain journal while they come.

``samples.jsonl.gz`` holds what has been measured and is what the repository has. A run appends to ``samples.jsonl``
beside it, line by line, so that killing it loses nothing; what is in both counts once, the journal's later. At its end
the run packs: all samples go into a new archive, which takes the old one's place at once, and then the journal is
emptied. Killed between the two, it leaves samples that are in both.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from longspan_eval.journal import Journal, read_samples
from longspan_eval.sample import Sample

ARCHIVE, JOURNAL = "samples.jsonl.gz", "samples.jsonl"


def read(folder: Path) -> dict[str, Sample]:
    """All samples of a folder by key.

    Raises:
        LongspanError: a file is damaged.
    """
    return {**read_samples(folder / ARCHIVE), **read_samples(folder / JOURNAL)}


class Samples:
    """The samples of a folder, open for more; one process at a time.

    Attributes:
        samples: by key.

    Raises:
        LongspanError: another process writes to them, or a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._archive = folder / ARCHIVE
        self._journal = Journal(folder / JOURNAL)  # its lock is that of the archive too
        try:
            self.samples = {**read_samples(self._archive), **self._journal.samples}
        except BaseException:
            self._journal.close()
            raise

    def append(self, key: str, sample: Sample) -> None:
        """Keep a sample. When this returns, killing the process cannot lose it."""
        self._journal.append(key, sample)
        self.samples[key] = sample

    def forget(self, keys: Collection[str]) -> int:
        """Remove the samples of these keys, and say how many there were."""
        gone = self.samples.keys() & set(keys)
        if gone:
            self.samples = {key: sample for key, sample in self.samples.items() if key not in gone}
            self._write()
        return len(gone)

    def pack(self) -> None:
        """Put what the journal holds into the archive."""
        if self._journal.samples:
            self._write()

    def _write(self) -> None:
        with TemporaryDirectory(prefix=".packing-", dir=self._archive.parent) as folder:
            plain, packed = Path(folder) / JOURNAL, Path(folder) / ARCHIVE
            with Journal(plain) as journal:
                for key, sample in self.samples.items():
                    journal.append(key, sample)
            # In one order and without a time, the same samples are the same bytes, which git sees as no change.
            lines = sorted(plain.read_text(encoding="utf-8").splitlines(keepends=True), key=_place)
            with packed.open("wb") as file:
                file.write(gzip.compress("".join(lines).encode(), mtime=0))
                file.flush()
                os.fsync(file.fileno())
            os.replace(packed, self._archive)
        self._journal.forget(set(self._journal.samples))

    def close(self) -> None:
        self._journal.close()

    def __enter__(self) -> Samples:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _place(line: str) -> tuple[Any, ...]:
    """Where a sample stands in the archive: beside others of the same prompt, which compresses best."""
    sample = json.loads(line)
    prompt = [str(sample.get(name)) for name in ("task", "filler", "seed", "depth")]
    return *prompt, sample["length"], sample["method"], sample["key"]
