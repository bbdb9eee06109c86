"""Releases of vLLM that longspan does not know: refused where it is asked for, untouched elsewhere."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from longspan import vllm as plugin
from longspan.errors import AttachError


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
    "additional, config",
    [({"longspan": "dca"}, None), ({}, SimpleNamespace(dual_chunk_attention_config={"chunk_size": 4}))],
    ids=["asked", "by the model's config"],
)
def test_with_longspan_one_line_says_which_releases_it_supports(unknown, additional, config):
    with pytest.raises(AttachError, match=r"supports vLLM 0\.29\.x and this is 0\.99\.1; install .* or leave") as error:
        unknown(additional, config).create_engine_config()
    assert "\n" not in str(error.value)


def test_registering_again_changes_nothing(unknown):
    before = unknown.create_engine_config
    plugin.register()
    assert unknown.create_engine_config is before


def test_without_vllm_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(plugin, "version", lambda name: (_ for _ in ()).throw(plugin.PackageNotFoundError(name)))
    with pytest.raises(RuntimeError, match=r"install longspan\[vllm\]"):
        plugin.installed()
