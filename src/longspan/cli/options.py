"""What several commands share: load a model, read a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan.hf.window import says_window
from longspan.methods import Method
from longspan.methods.parse import build_method

BUNDLED = "bundled"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def quiet() -> None:
    """Keep transformers' progress bars and remarks out of the output; its errors still come."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)


def wide() -> Console:
    """For a table on stdout: as wide as the terminal, and where there is none wide enough not to fold its cells."""
    page = Console(highlight=False)
    return page if page.is_terminal else Console(highlight=False, width=200)


def load_model(name: str, *, window: int | None, dtype: str = "auto", device: str = "auto") -> PreTrainedModel:
    """The model at a path or hub name, or ``"bundled"``, in eval mode.

    Raises:
        LongspanError: it cannot be loaded; or neither its config nor ``window`` says how many tokens it was trained on.
    """
    quiet()
    if dtype != "auto" and dtype not in DTYPES:
        raise LongspanError(f"--dtype is one of auto, {', '.join(DTYPES)}, not {dtype!r}")
    kind = None if dtype == "auto" else DTYPES[dtype]
    place = check_device(device)
    if name == BUNDLED:
        return load_bundled(device=place, dtype=kind)[0]
    _check_folder(name)
    with _loading(name if Path(name).is_dir() else f"{name} (there is no folder of this name)"):
        written, _ = PreTrainedConfig.get_config_dict(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=kind or "auto")
    if window is None and not says_window(written, model.config):
        raise LongspanError(
            f"{name}: its config.json has no max_position_embeddings; pass --window, the tokens it was trained on"
        )
    return model.to(place).eval()


def load_tokenizer(name: str) -> Any:
    """The tokenizer that belongs to a model."""
    if name == BUNDLED:
        return load_bundled()[1]
    with _loading(f"the tokenizer of {name}"):
        return AutoTokenizer.from_pretrained(name)


def read_text(path: Path) -> str:
    """A non-empty UTF-8 text file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LongspanError(f"{path}: not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    if not text.strip():
        raise LongspanError(f"{path}: the file is empty")
    return text


def method_or_auto(name: str, settings: Sequence[str], angles: str | None) -> Method | str:
    """The method, or ``"auto"``, which takes neither settings nor angles."""
    if name != "auto":
        return build_method(name, settings, angles)
    if settings or angles is not None:
        raise LongspanError("--method auto takes neither --set nor --angles; name a method to set its parameters")
    return name


def check_device(name: str) -> torch.device:
    """The device of a name, known to be there; ``"auto"`` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LongspanError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def _check_folder(name: str) -> None:
    """Say clearly what is wrong with a local path; a name that is no path is left to transformers and the hub."""
    path = Path(name)
    if path.is_file():
        raise LongspanError(f"{name}: is a file; give the folder that holds the model's config.json")
    if path.is_dir() and not (path / "config.json").is_file():
        raise LongspanError(f"{name}: there is no config.json in this folder, so it holds no transformers model")
    if not path.exists() and (path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        raise LongspanError(f"{name}: there is no such model folder")
    if path.is_dir():
        try:
            json.loads((path / "config.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise LongspanError(f"{name}: its config.json is not valid JSON ({error})") from error


@contextmanager
def _loading(what: str) -> Any:
    """Turn whatever loading raises (there is no common class for it) into one error that names what was loaded."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise LongspanError(f"cannot load {what}: {reason[:300]}") from error
