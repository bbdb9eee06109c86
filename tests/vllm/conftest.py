"""Fixtures of the tests in vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.bundled import FOLDER


@pytest.fixture(scope="session")
def bundled(tmp_path_factory) -> Path:
    """A folder with the bundled model alone: vLLM takes every file of weights in a folder for the model's."""
    folder = tmp_path_factory.mktemp("bundled")
    for path in FOLDER.iterdir():
        if path.suffix == ".json" or path.name == "model.safetensors":
            (folder / path.name).symlink_to(path)
    return folder
