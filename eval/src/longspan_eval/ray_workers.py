"""Measures requests on a Ray cluster, with an actor for a worker: the same samples as ``workers.run``.

An actor that dies takes nothing with it: another reads its prompt again. A prompt that has cost ``LIVES`` actors is a
sample with an ``error``.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from functools import partial
from importlib.util import find_spec
from logging import ERROR

import torch

from longspan.errors import LongspanError
from longspan.install import pip_install
from longspan_eval.measure import Measure
from longspan_eval.pool import Died, Load, together
from longspan_eval.run import Measured, Skip
from longspan_eval.sample import Sample
from longspan_eval.schedule import Request

LIVES = 2  # actors that one prompt may cost: a killed one proves little, two of them that it is the prompt


def require() -> None:
    """Raise LongspanError if Ray is not installed."""
    if find_spec("ray") is None:
        raise LongspanError(f"Ray is missing; install it with {pip_install('ray')}, or leave out --ray")


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
            self.__exit__()
            raise LongspanError(
                f"the Ray cluster has {have.get('CPU', 0):g} processors and {have.get('GPU', 0):g} GPUs; "
                f"a worker needs {self._threads} and {self._gpus}"
            )
        return self

    def __exit__(self, *error: object) -> None:
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

    def run(self, parts: Sequence[Sequence[Request]], *, load: Load, skip: Skip = lambda request: None) -> Measured:
        """Every request with its sample, as they come; see ``Answers``.

        Raises:
            LongspanError: the model cannot be loaded there.
        """
        start = partial(_Actor, load, self._threads, self._gpus)
        return together(parts, start, self.room, _ready, skip=skip, lives=LIVES)


class _Reader:
    """A reader in the cluster."""

    def load(self, load: Load, threads: int) -> str | None:
        """Load the model, or say why it cannot be."""
        torch.set_num_threads(threads)
        try:
            self._session = load()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def measure(self, measure: Measure) -> Sample:
        return self._session.measure(measure)


class _Actor:
    """A worker that is an actor of the cluster."""

    def __init__(self, load: Load, threads: int, gpus: int) -> None:
        import ray

        self._ray = ray
        self._actor = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(_Reader).remote()
        self.request: Request | None = None
        self.answer = self._actor.load.remote(load, threads)

    def send(self, request: Request) -> None:
        self.request = request
        self.answer = self._actor.measure.remote(request.measure)

    def receive(self) -> Sample | Died | None:
        try:
            answer = self._ray.get(self.answer)
        except self._ray.exceptions.RayActorError as error:
            if self.request is None:
                raise LongspanError(f"a worker ended while it loaded the model ({_line(error)})") from error
            return Died("killed, perhaps for lack of memory")
        except self._ray.exceptions.RayError as error:
            raise LongspanError(f"the Ray cluster cannot read a prompt: {_line(error)}") from error
        if isinstance(answer, str):
            raise LongspanError(f"a worker cannot load the model: {answer}")
        sample: Sample | None = answer
        return sample

    def stop(self) -> None:
        self._ray.kill(self._actor)

    def kill(self) -> None:
        self._ray.kill(self._actor)


def _ready(crew: Collection[_Actor]) -> list[_Actor]:
    """One of the actors that have answered, or died."""
    import ray

    (reference,), _ = ray.wait([actor.answer for actor in crew], num_returns=1)
    return [actor for actor in crew if actor.answer == reference]


def _knock(address: str) -> None:
    """Raise if nothing listens at ``host:port``; Ray itself goes on trying for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise LongspanError(f"--ray {address}: cannot reach the cluster ({error})") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[-300:]
