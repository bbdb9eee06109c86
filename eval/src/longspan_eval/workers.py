"""Measures requests in several processes; what goes wrong in one is a sample with an ``error``.

The parent alone decides who measures what and hands back every sample as soon as it is there. A worker that dies, of
too little memory say, takes one sample with it, which then says so; another worker takes its place. When the parent
dies, the workers end by themselves after the prompt that they have in hand.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from longspan.errors import LongspanError
from longspan.hf.progress_bar import Prefill, following
from longspan_eval.pool import Died, Load, together
from longspan_eval.run import Measured, Seen, Skip
from longspan_eval.sample import Sample
from longspan_eval.schedule import Request


def run(
    parts: Sequence[Sequence[Request]],
    *,
    load: Load,
    workers: int,
    deadline: float | None = None,
    threads: int = 1,
    skip: Skip = lambda request: None,
    seen: Seen | None = None,
) -> Measured:
    """Every request with its sample, as they come, from worker processes; see ``Answers``.

    Args:
        parts: in order of importance, each with requests of one cell.
        deadline: a ``time.monotonic()`` after which nothing new is measured.
        skip: called before each request; if it gives a reason, that is the sample's error and the cell's end.
        seen: told now and then how far a prompt is that takes longer than two seconds.
    """
    if workers < 1:
        raise LongspanError(f"workers must be at least 1, not {workers}")
    start = partial(_Process, load, threads, seen is not None)
    return together(parts, start, workers, _ready, deadline=deadline, skip=skip, seen=seen)


def _context() -> Any:
    """How processes start: a fork of this one might hang on its threads, so of a clean one that has only imported."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "longspan.bundled", "transformers.models.llama.modeling_llama"])
    return context


def _start_server(context: Any) -> None:
    """Start what workers are forked from, deaf to Ctrl-C from its first moment: else it dies in its imports, loudly."""
    if context.get_start_method() != "forkserver":
        return
    from multiprocessing import forkserver, resource_tracker

    resource_tracker.ensure_running()  # beforehand, as its own start lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which it inherits, and its workers do
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ready(crew: Collection[_Process]) -> list[_Process]:
    """The processes that have sent something, or ended."""
    by_connection = {worker.connection: worker for worker in crew}
    return [by_connection[ready] for ready in wait(list(by_connection))]


class _Process:
    """A worker that is a process of this machine."""

    def __init__(self, load: Load, threads: int, watched: bool) -> None:
        context = _context()
        _start_server(context)
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, load, threads, watched), daemon=True)
        self._process.start()
        theirs.close()  # so that either end notices when the other one is gone
        self.request: Request | None = None
        self._loaded = False

    def send(self, request: Request) -> None:
        self.request = request
        with suppress(BrokenPipeError, ConnectionResetError):  # it died while idle; receive says so
            self.connection.send(request)

    def receive(self) -> Sample | Prefill | Died | None:
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            if not self._loaded or self.request is None:
                raise LongspanError(f"a worker ended while it loaded the model ({self._reason()})") from None
            return Died(self._reason())
        if isinstance(answer, str):
            raise LongspanError(f"a worker cannot load the model: {answer}")
        self._loaded = True
        sample: Sample | Prefill | None = answer
        return sample

    def _reason(self) -> str:
        code = self._process.exitcode
        if code == -signal.SIGKILL:
            return "killed, perhaps because the system ran out of memory"
        return f"exit code {code}"

    def stop(self) -> None:
        self.connection.close()
        self._process.join()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, load: Load, threads: int, watched: bool) -> None:
    """A worker's life: load the model, say so with None, then answer every request until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent alone deals with it
    disable_progress_bar()  # the parent has its own
    torch.set_num_threads(threads)
    try:
        try:
            session = load()
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")
            return
        connection.send(None)
        with following(session.model, partial(_tell, connection)) if watched else nullcontext():
            while True:
                connection.send(session.measure(connection.recv().measure))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _tell(connection: Connection, now: Prefill | None) -> None:
    """Say how far a prompt is. That it has been read its sample says."""
    if now is not None:
        with suppress(OSError):  # the parent is gone
            connection.send(now)
