"""What several commands share: options, where output goes, loading a model, reading a text."""

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
_HUB_NAME = re.compile(r"(?:[\w.-]*\w/)?\w[\w.-]*", re.ASCII)  # of a model, perhaps after its owner's
_JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result and errors alone.")]


def notes(quiet: bool) -> Console:
    """Stderr, for all that is no result; nothing is printed where it is to be quiet."""
    return Console(stderr=True, quiet=quiet, highlight=False)


def say(console: Console, text: str) -> None:
    """Print a line as it is, however wide."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a document on stdout."""
    plain = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "") != "utf8"
    print(json.dumps(value, indent=1, ensure_ascii=plain, allow_nan=False))


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """Keep warnings, and what the library says on stderr by itself, out of the output where it is to be quiet."""
    if not quiet:
        yield
        return
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def no_pictures(console: Console) -> bool:
    """Whether pictures cannot be drawn, which is said."""
    missing = find_spec("matplotlib") is None
    if missing:
        say(console, "no pictures: matplotlib is missing (pip install 'longspan[plot]')")
    return missing


@contextmanager
def prefill_bar(model: PreTrainedModel, quiet: bool) -> Iterator[None]:
    """``longspan.progress``, where stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    import longspan

    with longspan.progress(model):
        yield


def quiet_transformers() -> None:
    """Keep transformers' progress bars and remarks out of the output; its errors still come."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)


def wide() -> Console:
    """For a table on stdout: as wide as the terminal, and where there is none, too wide to fold a cell."""
    page = Console(highlight=False)
    return page if page.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=200)


def show_results(folder: Path, as_json: bool) -> None:
    """What a run left in its folder, on stdout: ``results.json``, or ``summary.md`` to read."""
    if as_json:
        print_json(json.loads((folder / "results.json").read_text(encoding="utf-8")))
        return
    text, page = (folder / "summary.md").read_text(encoding="utf-8"), Console(highlight=False)
    if page.is_terminal:
        print_markdown(page, text)
    else:
        print(text, end="")


def load_model(name: str, *, window: int | None, dtype: str = "auto", device: str = "auto") -> PreTrainedModel:
    """The model at a path or hub name, or ``"bundled"``, in eval mode.

    Raises:
        LongspanError: it cannot be loaded; or neither its config nor ``window`` says how many tokens it was trained on.
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
            f"--dtype is one of auto, {', '.join(DTYPES)}, not {dtype!r}{did_you_mean(dtype, ['auto', *DTYPES])}"
        )
    kind = None if dtype == "auto" else getattr(torch, dtype)
    place = check_device(device)
    if name == BUNDLED:
        return load_bundled(device=place, dtype=kind)[0]
    _check_folder(name)
    with _loading(name, name):
        written, _ = PreTrainedConfig.get_config_dict(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=kind or "auto")
    if window is None and not says_window(written, model.config):
        raise LongspanError(
            f"{name}: its config.json has no max_position_embeddings; pass --window, the tokens it was trained on"
        )
    return model.to(place).eval()


def load_tokenizer(name: str) -> Any:
    """The tokenizer that belongs to a model."""
    from transformers import AutoTokenizer

    from longspan.bundled import load_bundled

    if name == BUNDLED:
        return load_bundled()[1]
    with _loading(name, f"the tokenizer of {name}"):
        return AutoTokenizer.from_pretrained(name)


def read_text(path: Path) -> str:
    """A non-empty UTF-8 text file; ``-`` is what comes in on stdin."""
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
    """Raise where stdin is to be read twice."""
    if list(paths).count(STDIN) > 1:
        raise LongspanError("- is stdin, which can be read once; name the other text's file")


def method_or_auto(spec: str, settings: Sequence[str], angles: str | None) -> Method | str:
    """The method of ``name:key=value,…`` with further settings, or ``"auto"``, which takes neither those nor angles."""
    from longspan.methods.parse import build_method, split_spec

    name, own = split_spec(spec)
    if name == "auto":
        if own or settings or angles is not None:
            raise LongspanError("--method auto takes no parameters, --set or --angles; name a method to set its own")
        return name
    under = own.pop("angles", None)
    if under is not None and angles is not None:
        raise LongspanError(f"{name}: the angles are set twice, by --method and by --angles")
    given = [f"{key}={value}" for key, value in own.items()]
    return build_method(name, [*given, *settings], angles if under is None else under, also=("auto",))


def check_device(name: str) -> torch.device:
    """The device of a name, known to be there; ``"auto"`` is a GPU where there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:  # of many kinds, by backend
        raise LongspanError(f"--device {name}: {_reason(error)}") from error
    if device.type == "meta":
        raise LongspanError(f"--device {name}: its tensors have no contents, so nothing can be computed there")
    return device


def _check_folder(name: str) -> None:
    """Say clearly what is wrong with a local path; a name that is no path is left to transformers and the hub."""
    path = Path(name)
    if "\0" in name or not name.strip():
        raise LongspanError("the model's name is empty" if not name.strip() else f"{name!r}: a name has no NUL in it")
    if path.is_file():
        raise LongspanError(f"{name}: is a file; give the folder that holds the model's config.json")
    if path.is_dir() and not (path / "config.json").is_file():
        raise LongspanError(f"{name}: there is no config.json in this folder, so it holds no transformers model")
    if not path.exists() and not _HUB_NAME.fullmatch(name):
        local = path.is_absolute() or name.startswith((".", "~"))
        hint = "" if local else ", and no model on a hub can have this name"
        raise LongspanError(f"{name}: there is no such model folder{hint}")
    if path.is_dir():
        for file in _JSON_FILES:
            if (path / file).is_file():
                _check_json(path / file, f"{name}: its {file}")


def _check_json(path: Path, what: str) -> None:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise LongspanError(f"{what} is nested too deep") from None
    except ValueError as error:
        raise LongspanError(f"{what} is not valid JSON ({error})") from error
    if not isinstance(held, dict):
        raise LongspanError(f"{what} holds no JSON object")


def _check_weights(folder: Path) -> None:
    """Raise for a file of weights that cannot be opened; what transformers says of it does not name it."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise LongspanError(f"{file}: not a whole safetensors file ({' '.join(str(error).split())})") from error


@contextmanager
def _loading(name: str, what: str) -> Iterator[None]:
    """Turn whatever loading raises (there is no common class for it) into one error that names what was loaded."""
    from longspan.cli.hub import within_reach

    local = Path(name).is_dir()
    try:
        with nullcontext() if local else within_reach() as unreachable:
            if not local:
                what += f" (there is no folder of this name{f'; {unreachable}' if unreachable else ''})"
            yield
    except Exception as error:
        if local:
            _check_weights(Path(name))
        if isinstance(error, LongspanError):
            raise
        raise LongspanError(f"cannot load {what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What an error of another library says, in a line; its kind as well where the message alone would say little."""
    said = " ".join(str(error).split())
    kind = type(error).__name__
    if isinstance(error, KeyError):
        return f"one of its files has no {said}"
    plain = isinstance(error, (OSError, ValueError, RuntimeError, ImportError, AssertionError))
    return (said if plain and " " in said else f"{kind}: {said}" if said else kind)[:300]


def check_text(option: str, text: str) -> None:
    """Raise where a text from the command line has bytes that are no UTF-8, which Python hides in half characters."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LongspanError(f"{option}: not UTF-8 at character {error.start + 1}") from error
