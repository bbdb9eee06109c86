"""What several commands share: options, where output goes, loading a model, reading a text."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from logging import ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from longspan.errors import LongspanError, did_you_mean
from longspan.tables import print_markdown

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from longspan.methods import Method

BUNDLED = "bundled"
DTYPES = ("float32", "bfloat16", "float16")
STDIN = Path("-")

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
    if dtype != "auto" and dtype not in DTYPES:
        raise LongspanError(
            f"--dtype is one of auto, {', '.join(DTYPES)}, not {dtype!r}{did_you_mean(dtype, ['auto', *DTYPES])}"
        )
    kind = None if dtype == "auto" else getattr(torch, dtype)
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
    from transformers import AutoTokenizer

    from longspan.bundled import load_bundled

    if name == BUNDLED:
        return load_bundled()[1]
    with _loading(f"the tokenizer of {name}"):
        return AutoTokenizer.from_pretrained(name)


def read_text(path: Path) -> str:
    """A non-empty UTF-8 text file; ``-`` is what comes in on stdin."""
    name = "stdin" if path == STDIN else str(path)
    try:
        text = (sys.stdin.buffer.read() if path == STDIN else path.read_bytes()).decode("utf-8")
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


def method_or_auto(name: str, settings: Sequence[str], angles: str | None) -> Method | str:
    """The method, or ``"auto"``, which takes neither settings nor angles."""
    from longspan.methods.parse import build_method

    if name != "auto":
        return build_method(name, settings, angles, also=("auto",))
    if settings or angles is not None:
        raise LongspanError("--method auto takes neither --set nor --angles; name a method to set its parameters")
    return name


def check_device(name: str) -> torch.device:
    """The device of a name, known to be there; ``"auto"`` is a GPU where there is one."""
    import torch

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
