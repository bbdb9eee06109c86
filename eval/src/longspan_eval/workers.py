"""Asks prompts in several processes; what goes wrong in one is a sample with an ``error``.

The parent alone decides who asks what and hands back every sample as soon as it is there. A worker that dies, of too
little memory say, takes one sample with it, which then says so; another worker takes its place. When the parent dies,
the workers end by themselves after the prompt that they have in hand.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from longspan.errors import LongspanError
from longspan.hf.prefill import Prefill, following
from longspan.signals import held
from longspan_eval.plan import Ask
from longspan_eval.results import Sample
from longspan_eval.runner import run_example

Load = Callable[[], tuple[Any, Any]]  # → model, tokenizer; a function of a module, so that a new process can find it
Skip = Callable[[Ask], "str | None"]  # why an ask's cell is not to be measured, or None
Seen = Callable[[Ask, Prefill], None]  # how far a prompt is


class Asker:
    """Asks one prompt after the other of one model, attaching a row's method where it changes."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._attached: tuple[Any, int, int | None] | None = None

    def __call__(self, ask: Ask) -> Sample:
        try:
            wanted = (ask.row, ask.length, ask.window)
            if self._attached != wanted:
                self._attached = None
                ask.row.attach(self._model, ask.length, ask.window)
                self._attached = wanted
            example = ask.task.build(
                self._tokenizer, length=ask.length, seed=ask.seed, depth=ask.depth, record=ask.record
            )
            label, task, filler = ask.row.label, ask.task, ask.filler
            return run_example(self._model, self._tokenizer, label, ask.length, example, task, filler)
        except Exception as error:  # a table of a night must not end at one row's fault: it is shown in its cell
            # A rule that parameters break says enough by itself; anything else is somebody's mistake and says where.
            known = isinstance(error, ValueError)
            return error_sample(ask, str(error) if known else f"{type(error).__name__}: {error} ({_where(error)})")


def error_sample(ask: Ask, error: str) -> Sample:
    """The sample of a prompt that got no answer."""
    words = " ".join(error.split())
    return Sample(
        ask.row.label, ask.length, ask.seed, ask.depth, "", error=words, filler=ask.filler, task=ask.task.name
    )


def run(
    parts: Sequence[Sequence[Ask]],
    load: Load,
    workers: int,
    *,
    deadline: float | None = None,
    threads: int = 1,
    skip: Skip = lambda ask: None,
    seen: Seen | None = None,
) -> Generator[tuple[Ask, Sample], None, None]:
    """Every ask with its sample, as they come.

    After an error no more of its cell is asked: what failed once would fail again.

    Args:
        parts: in order of importance, each with asks of one cell.
        load: loads the model in each worker.
        workers: how many processes.
        deadline: a ``time.monotonic()`` after which nothing new is asked.
        threads: of each process.
        skip: asked before each prompt; if it gives a reason, that is the sample's error and the cell's end.
        seen: told now and then how far a prompt is that takes longer than two seconds.
    """
    if workers < 1:
        raise LongspanError(f"workers must be at least 1, not {workers}")
    queue = _Queue(parts)
    crew: list[_Worker] = []
    try:
        count = min(workers, sum(map(len, parts)))
        if count:  # the first waits for the imports of what workers are forked from, which a signal may cut short
            crew.append(_Worker(load, threads, seen is not None))
        for _ in range(count - 1):
            _join(crew, load, threads, seen is not None)
        while crew:
            by_connection = {worker.connection: worker for worker in crew}
            for ready in wait(list(by_connection)):
                worker = by_connection[ready]
                asked = worker.asked
                sample = worker.receive()
                if isinstance(sample, Prefill):
                    if seen is not None and asked is not None:
                        seen(asked, sample)
                    continue
                if sample is not None and asked is not None:
                    if sample.error is not None:
                        queue.drop(asked)
                    yield asked, sample
                late = deadline is not None and time.monotonic() > deadline
                following = None if late else queue.take(worker)
                while following is not None and (reason := skip(following)) is not None:
                    queue.drop(following)
                    yield following, error_sample(following, reason)
                    following = queue.take(worker)
                if following is None or not worker.alive:
                    worker.stop()
                    crew.remove(worker)
                    if following is not None:
                        queue.put_back(following)
                        _join(crew, load, threads, seen is not None)
                else:
                    worker.ask(following)
    finally:
        with held():
            for worker in crew:
                worker.kill()


def _join(crew: list[_Worker], load: Load, threads: int, watched: bool) -> None:
    """Start one more; a signal finds it among the crew, or not begun."""
    with held():
        crew.append(_Worker(load, threads, watched))


class _Queue:
    """Hands out asks in order, to a worker its own part's first, so that it seldom has to attach another method."""

    def __init__(self, parts: Sequence[Sequence[Ask]]) -> None:
        self._waiting = deque(deque(part) for part in parts if part)
        self._held: dict[_Worker, deque[Ask]] = {}

    def take(self, worker: _Worker) -> Ask | None:
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

    def put_back(self, ask: Ask) -> None:
        self._waiting.appendleft(deque([ask]))

    def drop(self, failed: Ask) -> None:
        """Forget what else is asked of a cell."""
        for part in [*self._waiting, *self._held.values()]:
            if part and part[0].cell == failed.cell:
                part.clear()


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


class _Worker:
    """One process and what it was asked last."""

    def __init__(self, load: Load, threads: int, watched: bool) -> None:
        context = _context()
        _start_server(context)
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, load, threads, watched), daemon=True)
        self._process.start()
        theirs.close()  # so that either end notices when the other one is gone
        self.asked: Ask | None = None
        self._loaded = False
        self.alive = True

    def ask(self, ask: Ask) -> None:
        self.asked = ask
        with suppress(BrokenPipeError, ConnectionResetError):  # it died while idle; receive says so
            self.connection.send(ask)

    def receive(self) -> Sample | Prefill | None:
        """The sample of what was asked, or how far it is; None when the worker has only now loaded its model."""
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.alive = False
            self._process.join()
            if not self._loaded or self.asked is None:
                raise LongspanError(f"a worker ended while it loaded the model ({self._reason()})") from None
            return error_sample(self.asked, f"the worker died ({self._reason()})")
        if isinstance(answer, str):
            raise LongspanError(f"a worker cannot load the model: {answer}")
        self._loaded = True
        return answer

    def _reason(self) -> str:
        code = self._process.exitcode
        if code == -signal.SIGKILL:
            return "killed, as a system does that runs out of memory"
        return f"exit code {code}"

    def stop(self) -> None:
        self.connection.close()
        self._process.join()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, load: Load, threads: int, watched: bool) -> None:
    """A worker's life: load the model, say so with None, then answer every ask until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent alone deals with it
    disable_progress_bar()  # the parent has its own
    torch.set_num_threads(threads)
    try:
        try:
            model, tokenizer = load()
            asker = Asker(model, tokenizer)
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")
            return
        connection.send(None)
        with following(model, partial(_tell, connection)) if watched else nullcontext():
            while True:
                connection.send(asker(connection.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _tell(connection: Connection, now: Prefill | None) -> None:
    """Say how far a prompt is. That it has been read its sample says."""
    if now is not None:
        with suppress(OSError):  # the parent is gone
            connection.send(now)


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename.rpartition('/')[2]}:{last.lineno}"
