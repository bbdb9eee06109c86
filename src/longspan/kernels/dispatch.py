"""Which implementation of a kernel runs.

A ``Backend`` is a way to run kernels, such as C on a CPU. A ``Kernel`` has an ``Implementation`` by each backend that
offers one. Both are registered; no other module compares a backend's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from longspan.errors import LongspanError

Impl = str  # "auto", or the name of a backend

BACKENDS: dict[str, Backend] = {}


@dataclass(frozen=True, eq=False)
class Backend:
    """A way to run kernels.

    Attributes:
        name: its name as ``impl=`` takes it.
        device: the type of the devices on which ``"auto"`` takes it; ``"any"`` for all; None if it runs only by name.
        unsupported: a function of tensors that returns why no kernel of it can run on them, or None.
        title: its kernels in a report: ``"C kernels"``.
        details: a function that returns where its kernels are from, or None.
        in_c: whether scores, choices and whole decoding steps run in C beside its kernels.
        many_chunks: whether its kernels take several query chunks, each with tokens of its own, in one call.
    """

    name: str
    device: str | None
    unsupported: Callable[..., str | None] = lambda *_: None
    title: str = ""
    details: Callable[[], str | None] = lambda: None
    in_c: bool = False
    many_chunks: bool = False


def register(backend: Backend) -> Backend:
    """Add a backend. Of those for one type of device ``"auto"`` prefers what was registered first.

    Raises:
        ValueError: there is one of this name.
    """
    if backend.name == "auto" or BACKENDS.setdefault(backend.name, backend) is not backend:
        raise LongspanError(f"there is a backend {backend.name!r}; take another name")
    return backend


def check_impl(impl: Impl) -> None:
    """Raise ``ValueError`` unless ``impl`` is ``"auto"`` or the name of a backend."""
    if impl != "auto" and impl not in BACKENDS:
        raise LongspanError(f"impl must be one of {', '.join(('auto', *BACKENDS))}, not {impl!r}")


def considered(impl: Impl, device: torch.device) -> list[Backend]:
    """The backends that may run on a device, in the order in which they are tried."""
    if impl != "auto":
        check_impl(impl)
        return [BACKENDS[impl]]
    own, general = ([one for one in BACKENDS.values() if one.device == kind] for kind in (device.type, "any"))
    return own + general


def runs_in_c(impl: Impl) -> bool:
    """Whether scores, choices and decoding steps may run in C under this ``impl``."""
    return impl == "auto" or BACKENDS[impl].in_c


@dataclass(frozen=True, eq=False)
class Implementation:
    """A kernel by one backend.

    Attributes:
        backend: that runs it.
        run: computes it; its arguments and its result are the kernel's own.
        unsupported: a function of a kernel's inputs that returns why it cannot run on them, or None.
        slower: a function of the same inputs that returns whether ``"auto"`` passes it over, as others are faster.
        run_into: as ``run``, but it merges its result into tensors; None if it cannot.
    """

    backend: Backend
    run: Callable[..., Any]
    unsupported: Callable[..., str | None] = lambda *_: None
    slower: Callable[..., bool] = lambda *_: False
    run_into: Callable[..., None] | None = None


class Kernel:
    """The implementations of one kernel, by the names of their backends."""

    def __init__(self, *implementations: Implementation) -> None:
        self.implementations: dict[str, Implementation] = {}
        for one in implementations:
            self.register(one)

    def register(self, implementation: Implementation) -> None:
        """Add the implementation of a backend, or replace it."""
        self.implementations[implementation.backend.name] = implementation

    def choose(self, impl: Impl, device: torch.device, *inputs: Any) -> Implementation:
        """The implementation that runs.

        Args:
            impl: ``"auto"``, which takes the first backend for the device that can run, or the name of one.
            device: of the queries.
            inputs: of the kernel, as its implementations' ``unsupported`` and ``slower`` take them.

        Raises:
            ValueError: there is no backend of this name, or the named one cannot run here.
        """
        backends = considered(impl, device)
        found = [self.implementations[one.name] for one in backends if one.name in self.implementations]
        if impl == "auto":
            return next(one for one in found if not one.slower(*inputs) and one.unsupported(*inputs) is None)
        reason = found[0].unsupported(*inputs) if found else "this kernel has no such implementation"
        if reason is not None:
            raise LongspanError(f"{impl} cannot run here: {reason}; use impl='torch'")
        return found[0]
