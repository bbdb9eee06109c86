"""What several commands share: load a model, read a text, turn ``--set key=value`` into a method."""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan.methods import METHODS, Method
from longspan.rope import NTK, PI, Angles, DynamicNTK, YaRN

BUNDLED = "bundled"
ANGLES: dict[str, type[Angles]] = {"pi": PI, "ntk": NTK, "dynamic-ntk": DynamicNTK, "yarn": YaRN}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def quiet() -> None:
    """Keep transformers' progress bars and remarks out of the output; its errors still come."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)


def load_model(name: str, *, window: int | None, dtype: str = "auto", device: str = "auto") -> PreTrainedModel:
    """The model at a path or hub name, or ``"bundled"``, in eval mode.

    Raises:
        LongspanError: it cannot be loaded; or neither its config nor ``window`` says how many tokens it was trained on.
    """
    quiet()
    if dtype != "auto" and dtype not in DTYPES:
        raise LongspanError(f"--dtype is one of auto, {', '.join(DTYPES)}, not {dtype!r}")
    kind = None if dtype == "auto" else DTYPES[dtype]
    place = _device(device)
    if name == BUNDLED:
        return load_bundled(device=place, dtype=kind)[0]
    _check_folder(name)
    with _loading(name if Path(name).is_dir() else f"{name} (there is no folder of this name)"):
        written, _ = PreTrainedConfig.get_config_dict(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=kind or "auto")
    if window is None and not _says_window(written, model.config):
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


def build_method(name: str, settings: Sequence[str] = (), angles: str | None = None) -> Method:
    """A method with ``key=value`` settings for its parameters, or for those of its angles."""
    if name not in METHODS:
        raise LongspanError(f"no method is called {name!r}; there are {', '.join(METHODS)}")
    if angles is not None and angles not in ANGLES:
        raise LongspanError(f"no angles are called {angles!r}; there are {', '.join(ANGLES)}")
    kind = METHODS[name]
    under = kind().angles if angles is None else ANGLES[angles]()
    own, of_angles = _keys(kind, without="angles"), _keys(type(under))
    given: dict[str, Any] = {}
    given_angles: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise LongspanError(f"--set takes key=value, not {setting!r}")
        if key in own:
            given[key] = _parse(key, value.strip(), own[key])
        elif key in of_angles:
            given_angles[key] = _parse(key, value.strip(), of_angles[key])
        else:
            known = ", ".join([*own, *of_angles]) or "none"
            raise LongspanError(f"{name} has no parameter {key!r}; it has {known}")
    try:
        return kind(**given, angles=replace(under, **given_angles))
    except ValueError as error:
        raise LongspanError(str(error)) from error


def _keys(kind: type, without: str | None = None) -> dict[str, Any]:
    """The fields of a dataclass and their types."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind) if f.name != without}


def _parse(key: str, text: str, kind: Any) -> Any:
    """A value of the annotated type: a number, true or false, one of several words, or none where that is allowed."""
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    words = [word for choice in choices if get_origin(choice) is Literal for word in get_args(choice)]
    if type(None) in choices and text.lower() == "none":
        return None
    if bool in choices and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text in words:
        return text
    for number in (int, float):
        if number in choices:
            try:
                return number(text)
            except ValueError:
                continue
    names = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    wanted = [*words, *(names[choice] for choice in choices if choice in names)]
    raise LongspanError(f"{key} is {' or '.join(wanted)}, not {text!r}")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LongspanError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def _says_window(written: Any, config: Any) -> bool:
    """Whether a config as written states its window; transformers fills in a default of its own where it does not."""
    names = {"max_position_embeddings", config.attribute_map.get("max_position_embeddings")}
    nested = [value for value in written.values() if isinstance(value, dict)]
    return bool(names & written.keys()) or any(_says_window(value, config) for value in nested)


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
