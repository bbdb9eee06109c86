"""One thread that owns the model; requests and readings take turns there.

A step is one token of an answer, or one prefill chunk of a prompt or text. In a turn each job that has but a token or a
last prefill chunk to compute does one step; the tokens of all of them are computed ahead, in one forward. Whole prefill
chunks of long prompts and of texts come between turns, one at a time and for at most half of the time while somebody
waits: so a short question waits for one of them, and its answer is never half as fast.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

log = logging.getLogger("longspan.serve")


class Job(Protocol):
    """Work that is done step by step, all of it by the engine's thread.

    Attributes:
        cancelled: set by any thread when nobody waits for it any more.
        long: whether the next step is a whole prefill chunk of a prompt or a text.
    """

    cancelled: bool

    @property
    def long(self) -> bool: ...

    def step(self) -> bool:
        """Compute one step; returns whether there are more."""

    def close(self) -> None:
        """Called when the job was cancelled, or the engine stops."""

    def fail(self, error: Exception) -> None:
        """Called with the error that a step raised."""


class QueueFull(Exception):
    """The queue has no room for another request."""


class Engine:
    """Runs jobs.

    Args:
        max_running: requests that take turns; the others wait. max_queue: requests that wait at most.
        ahead: called in each turn with the jobs that are about to do a step, to compute together what these take; it
            raises nothing.

    Attributes:
        prefill_chunks: whole prefill chunks that were read so far.
    """

    def __init__(
        self, max_running: int, max_queue: int, ahead: Callable[[Sequence[Job]], None] = lambda jobs: None
    ) -> None:
        self._max_running, self._max_queue, self._ahead = max_running, max_queue, ahead
        self._changed = threading.Condition()
        self._waiting, self._readings = deque[Job](), deque[Job]()
        self._calls = deque[Callable[[], None]]()
        self._running: list[Job] = []
        self._turns: dict[int, int] = {}  # when each job with a long step had its last one
        self._quick_seconds = self._chunk_seconds = 0.0
        self._draining = self._stopped = False
        self.prefill_chunks = 0
        self._thread = threading.Thread(target=self._run, name="longspan-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a request.

        Raises:
            QueueFull: ``max_queue`` requests wait.
        """
        with self._changed:
            if sum(not one.cancelled for one in self._waiting) >= self._max_queue:
                raise QueueFull
            self._waiting.append(job)
            self._changed.notify_all()

    def read(self, job: Job) -> None:
        """Queue the reading of a text."""
        with self._changed:
            self._readings.append(job)
            self._changed.notify_all()

    def call_between_steps(self, call: Callable[[], None]) -> None:
        """Make a call in the engine's thread, between two steps."""
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that take turns."""
        return len(self._running)

    @property
    def readings(self) -> int:
        """Texts that are being read or wait for that."""
        return len(self._readings)

    def drain(self) -> None:
        """Take no more prefill chunks of texts, and wait until all requests are answered."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: (not self._waiting and not self._running) or not self._thread.is_alive())

    def stop(self) -> None:
        """End after the step that runs; what is not done is closed."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._admit():
            quick = [job for job in self._running if not job.long]
            began = time.perf_counter()
            self._ahead([job for job in quick if not job.cancelled])
            for job in quick:
                self._step(job, self._running)
            self._quick_seconds += time.perf_counter() - began
            if not quick or self._quick_seconds >= self._chunk_seconds:
                self._prefill_chunk()
        for job in [*self._running, *self._waiting, *self._readings]:
            job.close()

    def _admit(self) -> bool:
        """Start waiting requests, and wait while there is no work; False when the engine stops."""
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._stopped or self._calls or self._running or self._waiting or self._readings_go_on()
            )
            while self._calls:
                self._calls.popleft()()
            for job in [one for one in self._waiting if one.cancelled]:
                self._waiting.remove(job)
                job.close()
            while self._waiting and len(self._running) < self._max_running:
                self._running.append(self._waiting.popleft())
            return not self._stopped

    def _readings_go_on(self) -> bool:
        return bool(self._readings) and not self._draining

    def _prefill_chunk(self) -> None:
        """One prefill chunk of the job that has waited longest for one."""
        candidates = [job for job in self._running if job.long]
        if self._readings_go_on():
            candidates.append(self._readings[0])
        if not candidates:
            return
        job = min(candidates, key=lambda job: self._turns.get(id(job), 0))
        self.prefill_chunks += 1
        self._turns = {id(other): self._turns.get(id(other), 0) for other in candidates} | {
            id(job): self.prefill_chunks
        }
        began = time.perf_counter()
        self._step(job, self._running if job in self._running else self._readings)
        self._chunk_seconds, self._quick_seconds = time.perf_counter() - began, 0.0

    def _step(self, job: Job, jobs: list[Job] | deque[Job]) -> None:
        going_on = False
        try:
            if job.cancelled:
                job.close()
            else:
                going_on = job.step()
        except Exception as error:  # of one job, which ends; the others go on
            job.fail(error)
        if not going_on:
            with self._changed:
                jobs.remove(job)
