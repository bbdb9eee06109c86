"""Model folders to point the command line at, and a way to run it as a user does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from longspan.bundled import FOLDER
from longspan.cli import main
from support.small_llama import VOCABULARY, small_llama


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def refused(ran: Ran, *words: str) -> None:
    """Assert that a command ended in one line with these words."""
    assert ran.code != 0 and ran.out == "" and len(ran.err.splitlines()) == 1, ran
    assert all(word in ran.err for word in words), ran.err


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*args: Any) -> Ran:
        with pytest.raises(SystemExit) as stopped:
            main([str(arg) for arg in args])
        return Ran(int(stopped.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with the bundled tokenizer, window 128."""
    path = tmp_path_factory.mktemp("llama")
    small_llama(128).save_pretrained(path)
    PreTrainedTokenizerFast.from_pretrained(FOLDER).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def no_window(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same Llama, with no window in its config."""
    path = tmp_path_factory.mktemp("no_window")
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text())
    del config["max_position_embeddings"]
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="session")
def not_rope(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2, whose positions are learnt embeddings."""
    path = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, n_positions=128)
    GPT2LMHeadModel(config).save_pretrained(path)
    PreTrainedTokenizerFast.from_pretrained(FOLDER).save_pretrained(path)
    return path
