"""A cache of the test's own, in which models are kept."""

import pytest

from support.command_line import folder, no_hub, run  # noqa: F401


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "longspan" / "models"
