"""The process of a server: it listens, and shuts down in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from longspan import signals
from longspan.serve.app import build
from longspan.serve.connections import connections
from longspan.serve.demo import add_demo
from longspan.serve.host import Host
from longspan.serve.logs import set_up, tell
from longspan.serve.sockets import cannot_listen

_SIGNALS = tuple(signals.WORDS)
_ALWAYS = (signal.SIGINT, signal.SIGTERM)
# asyncio accepts so many at a time, before it hands the first over; all others wait in the system's queue.
_ACCEPTED_AT_ONCE, _QUEUE = 8, 1024
_SHUTDOWN_SECONDS = 30  # for clients that neither read nor finish their request, once all is answered


class Server(uvicorn.Server):
    """Shuts down gracefully: the first signal drains, the second ends at once."""

    def __init__(self, host: Host, **options: Any) -> None:
        settings = host.settings
        super().__init__(
            uvicorn.Config(
                build(host), host=settings.host, port=settings.port, lifespan="off", log_level="warning",
                access_log=False, log_config=None, server_header=False, timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
                http=connections(settings), ws="none", backlog=_ACCEPTED_AT_ONCE, **options,
            )
        )  # fmt: skip
        self._host = host
        self._draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        # Under nohup the server outlives its terminal.
        numbers = [x for x in _SIGNALS if x in _ALWAYS or signal.getsignal(x) is not signal.SIG_IGN]
        try:
            for number in numbers:
                loop.add_signal_handler(number, self.end)
        except NotImplementedError:  # Windows
            for number in numbers:
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.end))
        yield

    def end(self) -> None:
        """Drain, then end; called once more, end."""
        if self._draining is not None:
            self.force_exit = self.should_exit = True
            return
        self._host.draining = True
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        await asyncio.to_thread(self._host.drain)
        self.should_exit = True

    @property
    def address(self) -> str:
        """The URL that it listens on."""
        port = self.servers[0].sockets[0].getsockname()[1]
        name = self._host.settings.host
        return f"http://{f'[{name}]' if ':' in name else name}:{port}"

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # another process bound the port, too, and was the first to listen
            raise cannot_listen(self._host.settings.host, self._host.settings.port, error) from None
        for one in (one for server in self.servers for one in server.sockets):
            with one.dup() as listening:
                listening.listen(_QUEUE)
        if self.started:
            settings = self._host.settings
            tell(settings.log_format, f"longspan serves {settings.model} at {self.address}")


def serve(host: Host, sockets: list[socket.socket], *, demo: bool = False) -> None:
    """Serve until a signal.

    Args:
        sockets: bound, and not listening yet.
        demo: read the document of the demo first.
    """
    set_up(host.settings.log_format)
    try:
        host.start()
        if demo:
            tell(host.settings.log_format, "reading the document of the demo")
            add_demo(host)
        asyncio.run(Server(host).serve(sockets))
    finally:
        host.stop()
