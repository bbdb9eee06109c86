"""A remedy that is printed is a command that works from where longspan was installed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from longspan import install
from longspan.install import pip_install


@pytest.mark.parametrize("extra", ["serve", "gguf", "eval", "ray"])
def test_from_a_clone_it_is_the_clone(extra):
    *command, target = shlex.split(pip_install(extra))
    folder = Path(target.partition("[")[0])
    assert command == ["pip", "install", "-e"] and (folder / "pyproject.toml").is_file()
    assert (folder.name == "eval") is (extra in ("eval", "ray")) and ("[" in target) is (extra != "eval")


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, "longspan[serve]"),
        (
            {"url": "file:///tmp/longspan-0.1.0.whl", "archive_info": {}},
            "longspan[serve] @ file:///tmp/longspan-0.1.0.whl",
        ),
        ({"url": "https://x/y.git", "vcs_info": {"vcs": "git"}}, "longspan[serve] @ git+https://x/y.git"),
    ],
)
def test_else_it_is_as_pip_installed_it(monkeypatch, tmp_path, stated, expected):
    monkeypatch.setattr(install, "CLONE", tmp_path)
    text = None if stated is None else json.dumps(stated)
    monkeypatch.setattr(install, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert shlex.split(pip_install("serve")) == ["pip", "install", expected]
