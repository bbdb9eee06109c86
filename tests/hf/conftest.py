"""What several of these files run under, by ``pytestmark``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def threads_switch_often() -> Iterator[None]:
    """The interpreter changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
