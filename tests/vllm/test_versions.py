"""Releases of vLLM: those that longspan knows, and others: refused where it is asked for, untouched elsewhere."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement

from longspan import vllm as plugin
from longspan.errors import AttachError

ROOT = Path(__file__).parents[2]


def test_one_list_of_releases():
    """What the plugin attaches to is what the extra installs, what `make test-vllm` runs on, and what the page says."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    accepted = Requirement(extras["vllm"][0]).specifier
    assert [n for n in range(20, 60) if f"0.{n}.0" in accepted] == [int(name.split(".")[1]) for name in plugin.ADAPTERS]
    tried = [path.stem.removeprefix("requirements-") for path in ROOT.glob("tests/vllm/requirements-*.txt")]
    assert sorted(name.rpartition(".")[0] for name in tried) == sorted(plugin.ADAPTERS)
    default, *others = sorted(tried)
    makefile, page = ((ROOT / name).read_text() for name in ("Makefile", "docs/vllm.md"))
    assert f"VLLM_RELEASE ?= {default}" in makefile
    for other in others:
        asked = f"make test-vllm VLLM_RELEASE={other}"
        assert asked in makefile and f"$ {asked}" in page
    assert f"Releases {plugin.SUPPORTED} of vLLM." in page


def test_the_installed_release_has_its_adapter():
    pytest.importorskip("vllm.v1")
    adapter = plugin.ADAPTERS[".".join(plugin.installed().split(".")[:2])]
    for part in ("backend", "model"):
        import_module(f"{adapter}.{part}")


@pytest.fixture
def unknown(monkeypatch):
    """A vLLM of another release, with the one class that every release has."""

    class EngineArgs:
        def __init__(self, additional, config=None):
            self.made = SimpleNamespace(
                additional_config=additional, model_config=SimpleNamespace(hf_text_config=config)
            )

        def create_engine_config(self, usage=None):
            return self.made

    for name in ("vllm", "vllm.engine", "vllm.engine.arg_utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.engine.arg_utils"].EngineArgs = EngineArgs
    monkeypatch.setattr(plugin, "installed", lambda: "0.99.1")
    plugin.register()
    return EngineArgs


def test_without_longspan_it_works_as_before(unknown):
    args = unknown({"other": 1})
    assert args.create_engine_config() is args.made


@pytest.mark.parametrize(
    ("additional", "config"),
    [({"longspan": "dca"}, None), ({}, SimpleNamespace(dual_chunk_attention_config={"chunk_size": 4}))],
    ids=["asked", "by the model's config"],
)
def test_with_longspan_one_line_says_which_releases_it_supports(unknown, additional, config):
    said = r"supports vLLM 0\.29\.x, 0\.32\.x, 0\.33\.x, and this is 0\.99\.1; install .* or start vLLM"
    with pytest.raises(AttachError, match=said) as error:
        unknown(additional, config).create_engine_config()
    assert "\n" not in str(error.value)


def test_registering_again_changes_nothing(unknown):
    before = unknown.create_engine_config
    plugin.register()
    assert unknown.create_engine_config is before


@pytest.mark.parametrize("has_version", [True, False])
def test_a_build_of_another_name_runs_on(monkeypatch, has_version):
    """vLLM calls plugins without catching what they raise: nothing may be raised where nobody asks for longspan."""
    monkeypatch.setattr(plugin, "version", lambda name: (_ for _ in ()).throw(plugin.PackageNotFoundError(name)))
    build = ModuleType("vllm")
    if has_version:
        build.__version__ = "0.31.0+tpu"
    monkeypatch.setitem(sys.modules, "vllm", build)
    assert plugin.installed() == ("0.31.0+tpu" if has_version else "unknown")
