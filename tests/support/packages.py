"""A package that is installed: one module, and one method that its entry point names."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.methods.known import GROUP


def put_package(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, source: str) -> Path:
    """Put it into a folder in which Python then looks for packages, and return that folder."""
    module = value.partition(":")[0]
    (folder / f"{module}.py").write_text(source)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(folder)
    return folder
