"""`longspan serve` as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

CODE = "import longspan.cli; longspan.cli.main()"


class Process:
    """A server that was started from a command line.

    Args:
        files: that it may have open at most.

    Attributes:
        http: a client of it. log: what it said on stderr up to its address.
    """

    def __init__(self, documents: Path, *options: str, model: str = "bundled", files: int | None = None) -> None:
        command = [sys.executable, "-c", CODE, "serve", model, "--documents", str(documents), "--port", "0", *options]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.log = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if found := re.search(r' at (http://[^\s"]+)', line):
                self.http = httpx.Client(base_url=found[1], timeout=120)
                return
        raise AssertionError(f"it ended with {self.process.wait()}: {self.log}")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._close()

    def end(self) -> tuple[int, str]:
        """SIGTERM; its exit code, and what it said."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Its exit code once it has ended, and what it said since it listened."""
        _, said = self.process.communicate(timeout=120)
        self._close()
        return self.process.returncode, said

    def documents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("/v1/documents").json()["data"]
        return found

    def _close(self) -> None:
        self.http.close()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
