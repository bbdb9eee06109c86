"""Fixtures of the whole suite."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
import torch

# Triton reads this when it is first imported: without a GPU its kernels run in Python, on CPU tensors.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Imported modules and collected tests live to the end: the garbage collector need not scan them.
gc.disable()

from support.cases import ROPES  # noqa: E402


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(params=list(ROPES))
def any_rope(request: pytest.FixtureRequest):
    """A rotation in each layout over all, the leading and the trailing channels."""
    return ROPES[request.param]()


@pytest.fixture
def rope():
    """The common rotation: half layout, all channels."""
    return ROPES["half-all"]()


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nobody wrote holds NaN, so that reading it shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(1).isnan() and torch.zeros(1).new_empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)
