"""The sockets of a server, bound before the model is loaded: that takes minutes, and a port may be taken."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from longspan.errors import LongspanError


@contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """A socket for each address of a name, as asyncio binds them. They listen once the server starts, not before.

    Raises:
        LongspanError: an address cannot be had.
    """
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise LongspanError(f"--host {host}: {error.strerror or error}") from None
        sockets, missing = [], None
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                one = stack.enter_context(socket.socket(family, kind, protocol))
            except OSError:  # a family that this machine does not have
                continue
            if os.name == "posix":  # elsewhere it would take a port that another process listens on
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise cannot_listen(str(address[0]), port, error) from None
                missing = error  # localhost is ::1, too, even if IPv6 is turned off
            else:
                sockets.append(one)
        if not sockets:
            raise cannot_listen(host, port, missing or OSError(errno.EAFNOSUPPORT, ""))
        yield sockets


def cannot_listen(host: str, port: int, error: OSError) -> LongspanError:
    """The error of an address that is taken or not to be had."""
    # asyncio's errors have more than the system's words.
    why = os.strerror(error.errno) if error.errno else str(error)
    name = f"[{host}]" if ":" in host else host
    return LongspanError(f"cannot listen on {name}:{port}: {why}; give another --port (0 picks a free port) or --host")
