"""Hands out requests to workers, wherever they are: the longest that one holds is shared, and the dead are replaced."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from longspan.hf.progress_bar import Prefill
from longspan.signals import deferred_signals
from longspan_eval.run import Measured, Seen, Skip
from longspan_eval.sample import Sample
from longspan_eval.schedule import Request
from longspan_eval.session import Session

Load = Callable[[], Session]  # a function of a module, so that a new process can find it


@dataclass(frozen=True)
class Died:
    """The result of a worker that ended while it measured, and the reason why."""

    reason: str


class Worker(Protocol):
    """Measures one request at a time.

    Attributes:
        request: what it was sent last; None while it loads the model.
    """

    request: Request | None

    def send(self, request: Request) -> None:
        """Have a request measured."""

    def receive(self) -> Sample | Prefill | Died | None:
        """The request's state: its sample, or how far it is; None when the worker has only now loaded its model.

        Raises:
            LongspanError: it cannot load the model.
        """

    def stop(self) -> None:
        """End it when it is idle."""

    def kill(self) -> None:
        """End it at once."""


W = TypeVar("W", bound=Worker)


def together(
    parts: Sequence[Sequence[Request]],
    start: Callable[[], W],
    count: int,
    ready: Callable[[Collection[W]], Sequence[W]],
    *,
    deadline: float | None = None,
    skip: Skip = lambda request: None,
    seen: Seen | None = None,
    lives: int = 1,
) -> Measured:
    """Every request with its sample, from at most ``count`` workers.

    Args:
        ready: waits until some of the workers have something to be received, and returns those.
        lives: workers that one request may cost; the last one's death is its sample's error.
    """
    queue = Queue(parts)
    crew: list[W] = []
    deaths: dict[str, int] = {}
    count = min(count, sum(map(len, parts)))
    try:
        if count:  # the first may wait for imports that others are forked from, which a signal may cut short
            crew.append(start())
        for _ in range(count - 1):
            join(crew, start)
        while crew:
            for worker in ready(crew):
                request, answer = worker.request, worker.receive()
                if isinstance(answer, Prefill):
                    if seen is not None and request is not None:
                        seen(request, answer)
                    continue
                died = isinstance(answer, Died)
                if isinstance(answer, Died) and request is not None:
                    deaths[request.key] = deaths.get(request.key, 0) + 1
                    if deaths[request.key] < lives:
                        queue.put_back(request)
                        request = None
                    else:
                        answer = request.measure.failed(f"the worker died ({answer.reason})")
                if isinstance(answer, Sample) and request is not None:
                    if answer.error is not None:
                        queue.drop(request)
                    yield request, answer
                late = deadline is not None and time.monotonic() > deadline
                following = None if late else queue.take(worker)
                while following is not None and (reason := skip(following)) is not None:
                    queue.drop(following)
                    yield following, following.measure.failed(reason)
                    following = queue.take(worker)
                if following is not None and not died:
                    worker.send(following)
                    continue
                worker.stop()
                crew.remove(worker)
                if following is not None:
                    queue.put_back(following)
                    join(crew, start)
    finally:
        with deferred_signals():
            for worker in crew:
                worker.kill()


def join(crew: list[W], start: Callable[[], W]) -> None:
    """Start one more; a signal finds it among the crew, or not begun."""
    with deferred_signals():
        crew.append(start())


class Queue:
    """Hands out requests in order, to a worker its own part's first, so that it seldom has to attach another method."""

    def __init__(self, parts: Sequence[Sequence[Request]]) -> None:
        self._waiting = deque(deque(part) for part in parts if part)
        self._held: dict[Any, deque[Request]] = {}

    def take(self, worker: Any) -> Request | None:
        """The next request for a worker, or None."""
        own = self._held.get(worker)
        if not own:
            self._held.pop(worker, None)
            while self._waiting and not self._waiting[0]:
                self._waiting.popleft()
            # Once nothing waits, help with the longest part that another worker holds.
            own = self._waiting.popleft() if self._waiting else max(self._held.values(), key=len, default=None)
            if not own:
                return None
            self._held[worker] = own
        return own.popleft()

    def put_back(self, request: Request) -> None:
        """Hand out a request once more, as the next one."""
        self._waiting.appendleft(deque([request]))

    def drop(self, failed: Request) -> None:
        """Forget what else waits of a cell."""
        for part in [*self._waiting, *self._held.values()]:
            if part and part[0].cell == failed.cell:
                part.clear()
