"""Kill a process at a random moment while it reads, appends to or saves a document, and look at what is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

import longspan
from longspan.documents.appending import append_texts
from longspan.errors import DocumentError

PREFILL_CHUNK = 64
MORE = "\nAnd this is how it ended, after all." * 8
METHOD = "longheads:score=bounds"  # whose index lies in a document, too
KINDS = ("read", "append", "save")


class Killing:
    """Runs in children of this process, which are forked and killed.

    Args:
        fresh: gives the model, not extended.
        place: a folder for documents.
    """

    def __init__(self, fresh: Callable[[], object], tokenizer, text: str, place: Path) -> None:
        self.fresh, self.tokenizer, self.text, self.place = fresh, tokenizer, text, place
        self.before = place / "before.longspan"
        self.read(self.before)
        self.after = place / "after.longspan"
        shutil.copytree(self.before, self.after)
        self.append(self.after)
        self.unsaved = longspan.read(fresh(), tokenizer, text, method=METHOD, prefill_chunk=PREFILL_CHUNK)
        self.took = {}
        for kind in KINDS:
            began = time.perf_counter()
            self.child(kind, self.prepared(kind, place / f"timed-{kind}"), None)
            self.took[kind] = time.perf_counter() - began

    def read(self, path: Path) -> None:
        longspan.read(self.fresh(), self.tokenizer, self.text, method=METHOD, prefill_chunk=PREFILL_CHUNK, out=path)

    def append(self, path: Path) -> None:
        append_texts(path, self.fresh(), self.tokenizer, [("more", MORE)])

    def save(self, path: Path) -> None:
        self.unsaved.save(path)

    def prepared(self, kind: str, path: Path) -> Path:
        if kind == "append":
            shutil.copytree(self.before, path)
        return path

    def child(self, kind: str, path: Path, after: float | None) -> bool:
        """Do it in a child, killed after so many seconds; whether it was done."""
        pid = os.fork()
        if pid == 0:
            try:
                disable_progress_bar()  # its lock is shared with the parent, which would wait for who is killed with it
                getattr(self, kind)(path)
                os._exit(0)
            except BaseException as error:  # the parent sees that it did not end well
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
                os._exit(3)
        if after is not None:
            time.sleep(after)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if after is None:
            assert status == 0, f"{kind} failed"
        return status == 0

    def one(self, kind: str, seed: int) -> str:
        """One kill: ``before``, ``after`` or ``nothing`` is left, and done again it ends in the same bytes.

        Raises:
            AssertionError: anything else.
        """
        path = self.prepared(kind, self.place / f"{kind}-{seed}")
        self.child(kind, path, random.Random(seed).uniform(0, self.took[kind] * 1.1))
        left = self.left(path)
        assert left in (("before", "after") if kind == "append" else ("nothing", "before")), (kind, seed, left)
        if kind != "save" or left == "nothing":  # done again, it is not there twice, and nothing is beside it
            if kind == "save" and path.exists():
                # What was broken off is in the way of nobody.
                assert not [name for name in os.listdir(path) if name == "manifest.json"]
            self.child(kind, path, None)
        if left == "before" and kind != "append":
            left = "after"  # of a reading, and of a saving, it is what they end in
        wanted = self.after if kind == "append" else self.before
        assert contents(path) == contents(wanted), f"{kind}, seed {seed}: it ends in other bytes"
        shutil.rmtree(path)
        return left

    def left(self, path: Path) -> str:
        """Which document there is; opening it checks every byte."""
        try:
            document = longspan.Document.open(path, self.fresh(), self.tokenizer, verify=True)
        except DocumentError as error:
            said = str(error)
            known = ("this document does not exist", "this folder is not a document", "its reading is unfinished")
            return "nothing" if any(words in said for words in known) else f"refused: {said}"
        return "after" if document.text.endswith(MORE) else "before"


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a document."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}
