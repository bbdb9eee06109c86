"""The settings of a server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from longspan.errors import LongspanError
from longspan.text import extraction

MIB = 2**20
_SHARE = 8  # of the files that the process may have open: so many connections at most are answered, and wait


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of one server.

    Attributes:
        model: its name in the API.
        source: what the model was loaded from, for the documents' manifests.
        documents: the folder that documents are kept in.
        written: further documents, which `longspan read` wrote.
        host, port: where it listens; port 0 takes a free one.
        api_keys: of which every request must have one; none for a server on loopback without.
        prefill_chunk: tokens of a prompt or a text that are read at a time.
        max_new_tokens: length of an answer if a request does not set it.
        max_length: tokens of a prompt and its answer; None leaves it to the method.
        max_running: requests that are answered at a time. max_queue: those that wait for that, and texts that wait to
            be read.
        max_body: bytes of a request. max_prompt: characters of a prompt; a longer text is uploaded as a document.
        max_connections: requests that are received and answered at a time, and connections that wait for one.
        max_address_connections: requests of one address at a time.
        head_seconds, body_seconds: for a request's head, and for its body without the time for its bytes.
        extract_seconds, extract_memory: for the process that extracts the text of a PDF or HTML file.
        memory: bytes of conversations' caches that are kept in memory.
        kv_dir: folder for caches beyond ``memory``; None drops them. kv_disk: bytes of the files there.
        log_format: of the log's lines, "text" or "json".
    """

    model: str
    source: str
    documents: Path
    written: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    prefill_chunk: int = 1024
    max_new_tokens: int = 256
    max_length: int | None = None
    max_running: int = 32
    max_queue: int = 64
    max_body: int = extraction.SIZE
    max_prompt: int = 8 * MIB
    max_connections: int = 256
    max_address_connections: int = 128
    head_seconds: float = 10
    body_seconds: float = 30
    extract_seconds: float = extraction.SECONDS
    extract_memory: int = extraction.MEMORY
    memory: int = 1024 * MIB
    kv_dir: Path | None = None
    kv_disk: int = 16 * 1024 * MIB
    log_format: str = "text"

    def __post_init__(self) -> None:
        if not all(key.isascii() and key.isprintable() and key.strip() == key != "" for key in self.api_keys):
            raise LongspanError(
                "each key of --api-key and --api-keys must be printable ASCII, without spaces around it"
            )
        if not self.loopback and not self.api_keys:
            raise LongspanError(
                f"--host {self.host} can be reached from other machines; give --api-key (or LONGSPAN_API_KEY), or "
                "listen on 127.0.0.1"
            )
        if self.kv_dir is not None and not self.kv_dir.is_dir():
            raise LongspanError(f"--kv-dir {self.kv_dir} is not a folder; make it, or leave --kv-dir out")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def connections(self) -> int:
        """``max_connections`` within the files that the process may have open, of which caches need many more."""
        return int(min(self.max_connections, max(most_files() // _SHARE, 1)))


def most_files() -> float:
    """Files that this process may have open; infinite if the system does not report a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's alone; an address of IPv6 may have its brackets."""
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"
