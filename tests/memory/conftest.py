"""Fixtures of the store's tests."""

from __future__ import annotations

import pytest

from longspan.memory import Buffer


@pytest.fixture(params=["host", "disk"])
def apart(request, monkeypatch):
    """A tier off the device. The tests have no second device: here the host's memory counts as one."""
    monkeypatch.setattr(Buffer, "offloaded", property(lambda self: self.tier != "device"))
    return request.param
