"""Shared parts of the commands: options, output, loading of models, reading of texts."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from importlib.util import find_spec
from logging import ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from longspan import files
from longspan.errors import LongspanError, check_count, did_you_mean
from longspan.tables import print_markdown

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from longspan.methods import Method

BUNDLED = "bundled"
DTYPES = ("float32", "bfloat16", "float16")
STDIN = Path("-")
_HUB_NAME = re.compile(r"(?:[\w.-]*\w/)?\w[\w.-]*", re.ASCII)  # "model" or "owner/model"
_JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")]


def named_path(text: str) -> Path:
    """The path of an option; an empty one would be the current folder."""
    if not text.strip():
        raise typer.BadParameter("the name is empty")
    return Path(text)


def notes(quiet: bool) -> Console:
    """The console on stderr for all output besides results; it prints nothing if ``quiet``."""
    return Console(stderr=True, quiet=quiet, highlight=False)


def say(console: Console, text: str) -> None:
    """Print a line without markup and without wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a JSON document on stdout."""
    ascii_only = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "") != "utf8"
    print(json.dumps(value, indent=1, ensure_ascii=ascii_only, allow_nan=False))


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """If ``quiet``, suppress warnings and the output of libraries on stderr."""
    if not quiet:
        yield
        return
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def refusals() -> Iterator[None]:
    """Convert a ``ValueError``, by which the library refuses a value, to the ``LongspanError`` of a command."""
    try:
        yield
    except LongspanError:
        raise
    except ValueError as error:
        raise LongspanError(str(error)) from error


def no_pictures(console: Console) -> bool:
    """Whether matplotlib is missing; prints a note if so."""
    missing = find_spec("matplotlib") is None
    if missing:
        say(console, "no pictures: matplotlib is missing (pip install 'longspan[plot]')")
    return missing


@contextmanager
def prefill_bar(model: PreTrainedModel, quiet: bool) -> Iterator[None]:
    """``longspan.progress`` if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    import longspan

    with longspan.progress(model):
        yield


def quiet_transformers() -> None:
    """Turn off the progress bars and warnings of transformers, but not its errors."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)


def wide() -> Console:
    """The console for tables on stdout: as wide as the terminal, or 200 columns without one, so that no cell wraps."""
    page = Console(highlight=False)
    return page if page.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=200)


def show_results(folder: Path, as_json: bool) -> None:
    """Print the results of a run's folder on stdout: ``results.json`` if ``as_json``, otherwise ``summary.md``."""
    if as_json:
        print_json(json.loads((folder / "results.json").read_text(encoding="utf-8")))
        return
    text, page = (folder / "summary.md").read_text(encoding="utf-8"), Console(highlight=False)
    if page.is_terminal:
        print_markdown(page, text)
    else:
        print(text, end="")


def load_model(name: str, *, window: int | None, dtype: str = "auto", device: str = "auto") -> PreTrainedModel:
    """Load a model from a folder or the hub, or the ``"bundled"`` one, in eval mode.

    Raises:
        LongspanError: the model cannot be loaded, or neither its config nor ``window`` states its trained window.
    """
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedConfig

    from longspan.bundled import load_bundled
    from longspan.hf.window import says_window

    quiet_transformers()
    if window is not None:
        check_count("--window", window)
    if dtype != "auto" and dtype not in DTYPES:
        raise LongspanError(
            f"--dtype must be one of auto, {', '.join(DTYPES)}, not {dtype!r}{did_you_mean(dtype, ['auto', *DTYPES])}"
        )
    torch_dtype = None if dtype == "auto" else getattr(torch, dtype)
    torch_device = check_device(device)
    if name == BUNDLED:
        return load_bundled(device=torch_device, dtype=torch_dtype)[0]
    _check_folder(name)
    with _loading(name, name):
        config_dict, _ = PreTrainedConfig.get_config_dict(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch_dtype or "auto")
    if window is None and not says_window(config_dict, model.config):
        raise LongspanError(
            f"{name}: its config.json has no max_position_embeddings; pass --window, its trained window in tokens"
        )
    return model.to(torch_device).eval()


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model; raises ``LongspanError`` if that fails."""
    from transformers import AutoTokenizer

    from longspan.bundled import load_bundled

    if name == BUNDLED:
        return load_bundled()[1]
    with _loading(name, f"the tokenizer of {name}"):
        return AutoTokenizer.from_pretrained(name)


def read_text(path: Path) -> str:
    """Read a non-empty UTF-8 text file, or stdin for ``-``; line ends become ``\\n``.

    Raises:
        LongspanError: the text is empty or not UTF-8.
        OSError: the file cannot be read.
    """
    name = "stdin" if path == STDIN else str(path)
    try:
        text = (sys.stdin.buffer.read() if path == STDIN else files.read(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise LongspanError(f"{name}: not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise LongspanError(f"{name}: the file is empty")
    return text


def one_stdin(paths: Sequence[Path | None]) -> None:
    """Raise ``LongspanError`` if several paths are stdin."""
    if list(paths).count(STDIN) > 1:
        raise LongspanError("stdin (-) can be read only once; pass a file for the other text")


def method_or_auto(spec: str, settings: Sequence[str], angles: str | None) -> Method | str:
    """The method of ``name:key=value,…`` with further ``settings`` and ``angles``, or ``"auto"``.

    Raises:
        LongspanError: the spec is invalid, a parameter is set twice, or ``"auto"`` has parameters.
    """
    from longspan.methods.parse import build_method, split_spec

    name, parameters = split_spec(spec)
    if name == "auto":
        if parameters or settings or angles is not None:
            raise LongspanError("--method auto takes no parameters, --set or --angles; name a method to set them")
        return name
    spec_angles = parameters.pop("angles", None)
    if spec_angles is not None and angles is not None:
        raise LongspanError(f"{name}: the angles are set twice, by --method and by --angles")
    all_settings = [*(f"{key}={value}" for key, value in parameters.items()), *settings]
    return build_method(name, all_settings, angles if spec_angles is None else spec_angles, also=("auto",))


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
    if path.is_dir() and not (path / "config.json").is_file():
        raise LongspanError(f"{name}: this folder has no config.json, so it is not a transformers model")
    if not path.exists() and not _HUB_NAME.fullmatch(name):
        local = path.is_absolute() or name.startswith((".", "~"))
        hint = "" if local else ", and the name is not valid on a hub"
        raise LongspanError(f"{name}: this model folder does not exist{hint}")
    if path.is_dir():
        for file in _JSON_FILES:
            if (path / file).is_file():
                _check_json(path / file, f"{name}: its {file}")


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


def check_text(option: str, text: str) -> None:
    """Raise ``LongspanError`` for bytes that are not UTF-8, which Python passes on as surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LongspanError(f"{option}: not UTF-8 at character {error.start + 1}") from error
