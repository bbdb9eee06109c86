"""Loading of models and tokenizers, with one clear error for whatever keeps them from being loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from logging import ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.bundled import FOLDER
from longspan.errors import LongspanError, check_count, did_you_mean

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

BUNDLED = "bundled"
DTYPES = ("float32", "bfloat16", "float16")
_HUB_NAME = re.compile(r"(?:[\w.-]*\w/)?\w[\w.-]*", re.ASCII)  # "model" or "owner/model"
_JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def load_model(name: str, *, window: int | None, dtype: str = "auto", device: str = "auto") -> PreTrainedModel:
    """Load a model from a folder or the hub, or the ``"bundled"`` one, in eval mode.

    Raises:
        LongspanError: the model cannot be loaded, or neither its config nor ``window`` states its trained window.
    """
    from transformers import AutoModelForCausalLM, PreTrainedConfig

    from longspan.hf.window import says_window

    quiet_transformers()
    if window is not None:
        check_count("--window", window)
    if dtype != "auto" and dtype not in DTYPES:
        raise LongspanError(
            f"--dtype must be one of auto, {', '.join(DTYPES)}, not {dtype!r}{did_you_mean(dtype, ['auto', *DTYPES])}"
        )
    torch_device = check_device(device)
    source = _source(name)
    _check_folder(source)
    with _loading(source, name):
        config_dict, _ = PreTrainedConfig.get_config_dict(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    if window is None and not says_window(config_dict, model.config):
        raise LongspanError(
            f"{name}: its config.json has no max_position_embeddings; pass --window, its trained window in tokens"
        )
    return model.to(torch_device).eval()


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model; raises ``LongspanError`` if that fails."""
    from transformers import AutoTokenizer

    with _loading(_source(name), f"the tokenizer of {name}"):
        return AutoTokenizer.from_pretrained(_source(name))


def origin(name: str) -> str:
    """The model's source as documents state it: a folder as an absolute path, else the name."""
    return name if name == BUNDLED or not Path(name).exists() else str(Path(name).resolve())


def _source(name: str) -> str:
    """The folder of a model's name where that is ``"bundled"``, else the name."""
    return str(FOLDER) if name == BUNDLED else name


def quiet_transformers() -> None:
    """Turn off the progress bars and warnings of transformers, but not its errors."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)


def check_device(name: str) -> torch.device:
    """The torch device of a name, checked; ``"auto"`` is a CUDA GPU if one is available, otherwise the CPU."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:  # each backend raises errors of other types
        raise LongspanError(f"--device {name}: {_reason(error)}") from error
    if device.type == "meta":
        raise LongspanError(f"--device {name}: this device stores no data and cannot compute; pass cpu or cuda")
    return device


def _check_folder(name: str) -> None:
    """Raise a clear error for an invalid local path; other names are left to transformers and the hub."""
    path = Path(name)
    if "\0" in name or not name.strip():
        raise LongspanError(f"{name!r}: the name contains a NUL" if name.strip() else "the model's name is empty")
    if path.is_file():
        raise LongspanError(f"{name}: is a file; pass the folder of the model's config.json")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise LongspanError(f"{name}: this folder has no config.json, so it is not a transformers model")
        for file in filter(Path.is_file, (path / file for file in _JSON_FILES)):
            _check_json(file, f"{name}: its {file.name}")
    elif not path.exists() and not _HUB_NAME.fullmatch(name):
        local = path.is_absolute() or name.startswith((".", "~"))
        hint = "" if local else ", and the name is not valid on a hub"
        raise LongspanError(f"{name}: this model folder does not exist{hint}")


def _check_json(path: Path, label: str) -> None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise LongspanError(f"{label} has too many nested levels") from None
    except ValueError as error:
        raise LongspanError(f"{label} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise LongspanError(f"{label} is not a JSON object")


def _check_weights(folder: Path) -> None:
    """Raise for a weights file that cannot be opened; the error of transformers does not name the file."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise LongspanError(f"{file}: not a complete safetensors file ({' '.join(str(error).split())})") from error


@contextmanager
def _loading(name: str, label: str) -> Iterator[None]:
    """Convert every exception of loading (they share no base class) to one error that names the loaded object."""
    from longspan.cli.hub import within_reach

    local = Path(name).is_dir()
    try:
        with nullcontext() if local else within_reach() as unreachable:
            if not local:
                label += f" (no folder has this name{f'; {unreachable}' if unreachable else ''})"
            yield
    except Exception as error:
        if local:
            _check_weights(Path(name))
        if isinstance(error, LongspanError):
            raise
        raise LongspanError(f"cannot load {label}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The message of another library's error in one line, with the error's class if the message alone is unclear."""
    message = " ".join(str(error).split())
    name = type(error).__name__
    if isinstance(error, KeyError):
        return f"one of its files has no {message}"
    clear = isinstance(error, (OSError, ValueError, RuntimeError, ImportError, AssertionError)) and " " in message
    return (message if clear else f"{name}: {message}" if message else name)[:300]
