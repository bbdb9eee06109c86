"""A clock by which every forward takes as long as any other, so that nothing depends on what else a machine does."""

from __future__ import annotations

from itertools import count

import pytest

from longspan.doctor import measuring


@pytest.fixture(scope="module", autouse=True)
def steady():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "_clock", lambda device: (count(0.0, 0.25).__next__, "cpu"))
        yield
