"""Asks prompts on a Ray cluster: an actor for each row, the longest row first; the same samples as ``workers.run``.

An actor that dies takes nothing with it: another reads its prompt again. A prompt that has cost ``LIVES`` actors is a
sample with an ``error``. Ray decides where an actor runs, and when: one that finds no free processors (or, for a model
on a GPU, no free GPU) waits for another to be done.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from logging import ERROR
from types import TracebackType
from typing import Any

import torch

from longspan.errors import LongspanError
from longspan_eval.plan import Ask
from longspan_eval.results import Sample
from longspan_eval.workers import Asker, Load, Skip, error_sample

LIVES = 2  # actors that one prompt may cost: a killed one proves little, two of them that it is the prompt


def require() -> None:
    """Raise LongspanError where Ray is not installed."""
    if find_spec("ray") is None:
        raise LongspanError("Ray is missing; install it with pip install 'longspan[ray]', or leave out --ray")


class Cluster:
    """A connection to a Ray cluster, for a ``with`` statement.

    Args:
        address: ``"ray://host:port"``, ``"host:port"``, ``"auto"`` for the one that runs here, ``"local"`` for a new
            one on this machine; empty for what ``ray.init`` does of itself. The model, if it is a folder, and longspan
            have to be on every machine of it.
        threads: of each actor; so many processors are reserved for it.
        gpus: of each actor.

    Raises:
        LongspanError: there is no Ray, no such cluster, or no room in it for one actor.
    """

    def __init__(self, address: str, *, threads: int = 1, gpus: int = 0) -> None:
        require()
        self._address, self._threads, self._gpus = address, threads, gpus
        self._ours = False

    def __enter__(self) -> Cluster:
        import ray

        if not ray.is_initialized():
            _knock(self._address)
            try:
                ray.init(
                    address=self._address or None,
                    log_to_driver=False,
                    logging_level=ERROR,
                    include_dashboard=None if self._address not in ("", "local") else False,
                )
            except (ConnectionError, ValueError, RuntimeError, OSError) as error:
                reason = " ".join(str(error).split())[:300]
                raise LongspanError(f"--ray {self._address}: cannot reach the cluster ({reason})") from error
            self._ours = True
        if self.room < 1:
            have = ray.cluster_resources()
            self.__exit__(None, None, None)
            raise LongspanError(
                f"the Ray cluster has {have.get('CPU', 0):g} processors and {have.get('GPU', 0):g} GPUs; "
                f"a worker needs {self._threads} and {self._gpus}"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours:
            import ray

            ray.shutdown()

    @property
    def room(self) -> int:
        """How many actors run at a time."""
        import ray

        have = ray.cluster_resources()
        room = have.get("CPU", 0) // self._threads
        return int(min(room, have.get("GPU", 0) // self._gpus) if self._gpus else room)

    def run(
        self,
        parts: Sequence[Sequence[Ask]],
        load: Load,
        *,
        cost: Callable[[Ask], float],
        skip: Skip = lambda ask: None,
    ) -> Generator[tuple[Ask, Sample], None, None]:
        """Every ask with its sample, as they come; after an error no more of its cell is asked.

        Args:
            parts: each with asks of one cell; those of one row are asked in this order.
            load: loads the model in each actor.
            cost: about how long an ask takes: the row with the most to do starts first.
            skip: as for ``workers.run``.

        Raises:
            LongspanError: the model cannot be loaded there.
        """
        queues: dict[str, deque[Ask]] = {}
        for part in parts:
            for ask in part:
                queues.setdefault(ask.row.label, deque()).append(ask)
        crew = _Crew(self._threads, self._gpus, load)
        try:
            for label in sorted(queues, key=lambda label: -sum(map(cost, queues[label]))):
                crew.start(label)
            deaths: dict[str, int] = {}
            while crew.busy:
                label, asked, sample = crew.next()
                queue = queues[label]
                if sample is not None and asked is not None:
                    if sample.error is not None:
                        _drop(queue, asked)
                    yield asked, sample
                elif asked is not None:  # its actor died; the next one is asked when it has loaded
                    deaths[asked.key] = deaths.get(asked.key, 0) + 1
                    if deaths[asked.key] < LIVES:
                        queue.appendleft(asked)
                    else:
                        _drop(queue, asked)
                        yield asked, error_sample(asked, f"it cost {LIVES} workers, of too little memory perhaps")
                    if queue:
                        crew.start(label)
                    continue
                while queue and (reason := skip(queue[0])) is not None:
                    skipped = queue.popleft()
                    _drop(queue, skipped)
                    yield skipped, error_sample(skipped, reason)
                if queue:
                    crew.ask(label, queue.popleft())
                else:
                    crew.stop(label)
        finally:
            crew.end()


def _drop(queue: deque[Ask], failed: Ask) -> None:
    """Forget what else is asked of a cell."""
    left = [ask for ask in queue if ask.cell != failed.cell]
    queue.clear()
    queue.extend(left)


class _Reader:
    """What runs in the cluster."""

    def load(self, load: Load, threads: int) -> str | None:
        """Load the model, or say why it cannot be."""
        torch.set_num_threads(threads)
        try:
            self._asker = Asker(*load())
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def read(self, ask: Ask) -> Sample:
        return self._asker(ask)


class _Crew:
    """The actors by row, and what each was asked last."""

    def __init__(self, threads: int, gpus: int, load: Load) -> None:
        import ray

        self._ray = ray
        self._threads, self._load = threads, load
        self._kind = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(_Reader)
        self._actors: dict[str, Any] = {}
        self._waiting: dict[Any, tuple[str, Ask | None]] = {}  # by Ray's reference to the answer
        self._lost: dict[str, int] = {}  # actors that died while they loaded

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def start(self, label: str) -> None:
        """An actor for a row, which has to load the model before it can be asked."""
        actor = self._actors[label] = self._kind.remote()
        self._waiting[actor.load.remote(self._load, self._threads)] = label, None

    def ask(self, label: str, ask: Ask) -> None:
        self._waiting[self._actors[label].read.remote(ask)] = label, ask

    def next(self) -> tuple[str, Ask | None, Sample | None]:
        """The row, what it was asked and its sample: without both it has loaded, without a sample its actor died."""
        while True:
            (reference,), _ = self._ray.wait(list(self._waiting), num_returns=1)
            label, asked = self._waiting.pop(reference)
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayActorError as error:
                del self._actors[label]
                if asked is not None:
                    return label, asked, None
                self._lost[label] = self._lost.get(label, 0) + 1
                if self._lost[label] == LIVES:
                    raise LongspanError(f"{LIVES} workers died while they loaded the model: {_line(error)}") from error
                self.start(label)
                continue
            except self._ray.exceptions.RayError as error:
                raise LongspanError(f"the Ray cluster cannot read a prompt: {_line(error)}") from error
            if isinstance(answer, str):
                raise LongspanError(f"a worker cannot load the model: {answer}")
            return label, asked, answer

    def stop(self, label: str) -> None:
        self._ray.kill(self._actors.pop(label))

    def end(self) -> None:
        for label in list(self._actors):
            self.stop(label)


def _knock(address: str) -> None:
    """Raise where nothing listens at ``host:port``; Ray itself goes on trying for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise LongspanError(f"--ray {address}: cannot reach the cluster ({error})") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[-300:]
