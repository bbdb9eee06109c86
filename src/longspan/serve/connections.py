"""The connections of a server: what a client may take of its time and its files before it has asked for anything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from longspan.serve.errors import error_body
from longspan.serve.settings import ServerSettings

_BYTES_A_SECOND = 1024  # of a body, each of which gives it more time
READ_SECONDS = 60.0  # in which a client takes something of an answer


class HalfOpen:
    """Connections that wait for a request, at most some of them: for one more the oldest is closed.

    It is the oldest of the address that has the most, so who asks at once is not driven out by those who never do.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._of_address: dict[str, dict[Connection, None]] = {}  # the oldest first

    def add(self, one: Connection) -> None:
        self._of_address.setdefault(one.address, {})[one] = None
        self._count += 1
        if self._count > self._most:
            mine = max(self._of_address.values(), key=len)
            oldest = next(iter(mine))
            oldest.turn_away(503, "too many connections wait for a request; try again later", "too_many_connections")

    def discard(self, one: Connection) -> None:
        mine = self._of_address.get(one.address, {})
        if one in mine:
            del mine[one]
            self._count -= 1
            if not mine:
                del self._of_address[one.address]


class Connection(H11Protocol):
    """A client's connection, which ends if its request, or what it reads of the answer, does not move on.

    Attributes:
        settings: its times. half_open: those of the server. address: of the client.
    """

    settings: ServerSettings
    half_open: HalfOpen

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.address = ""
        self._awaited: str | None = None  # the part of a request that is to come
        self._since, self._received = 0.0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        transport.set_write_buffer_limits(high=0)  # so that a pause in writing is the client's
        self._follow()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        self._stop_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_reading()
        super().resume_writing()

    def turn_away(self, status: int, words: str, code: str) -> None:
        """Close the connection, with this error if no answer has begun."""
        if self.conn.their_state is h11.IDLE or not self.cycle.response_started:
            body = json.dumps(error_body(status, words, code=code)).encode()
            head = f"HTTP/1.1 {status} \r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        self._await(None)
        self.transport.close()

    def _follow(self) -> None:
        state = self.conn.their_state
        if self.transport.is_closing() or state not in (h11.IDLE, h11.SEND_BODY):
            self._await(None)
        elif state is h11.SEND_BODY and not self.cycle.response_complete:
            self._await("body")
        else:  # also the rest of a body that nobody wants: what was answered without it
            self._await("head")

    def _await(self, part: str | None) -> None:
        if part == self._awaited:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._awaited == "head":
            self.half_open.discard(self)
        self._awaited = part
        if part is not None:
            self._since, self._received = self.loop.time(), 0
            self._timer = self.loop.call_later(self._seconds(), self._late)
        if part == "head":
            self.half_open.add(self)

    def _seconds(self) -> float:
        """The time that the awaited part may take, as much of it as there is."""
        if self._awaited == "head":
            return self.settings.head_seconds
        return self.settings.body_seconds + self._received / _BYTES_A_SECOND

    def _late(self) -> None:
        left = self._since + self._seconds() - self.loop.time()
        if self.flow.read_paused:  # it is the server that is slow
            left = max(left, self.settings.body_seconds)
        if left > 0:
            self._timer = self.loop.call_later(left, self._late)
        else:
            self.turn_away(408, f"the {self._awaited} of the request did not come in time", "request_timeout")

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


def connections(settings: ServerSettings) -> type[asyncio.Protocol]:
    """The protocol of a server's connections."""
    return type("Connection", (Connection,), {"settings": settings, "half_open": HalfOpen(settings.connections)})
