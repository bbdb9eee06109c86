"""Loading of models and tokenizers, with one clear error for whatever keeps them from being loaded."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from logging import ERROR, getLogger
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.deferred import transformers
from longspan.errors import LongspanError, check_count, did_you_mean
from longspan.loading.forms import form_of, from_folder, from_gguf
from longspan.loading.gguf import ENDING, tokenizer_folder
from longspan.loading.names import path_of
from longspan.methods import Method
from longspan.methods.keywords import SETTINGS, configured
from longspan.rope import Angles
from longspan.weights import MIXED

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16", MIXED)
_HUB_NAME = re.compile(r"(?:[\w.-]*\w/)?\w[\w.-]*", re.ASCII)  # "model" or "owner/model"
_JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def load(
    name: str | PathLike[str],
    method: str | Method | Angles | type[Method | Angles] | None = None,
    *,
    dtype: str = "auto",
    weights: str = "auto",
    device: str = "auto",
    quiet: bool = False,
    **options: Any,
) -> tuple[transformers.PreTrainedModel, Any]:
    """Load a model and its tokenizer, extended by a method or ready for ``longspan.extend``.

    The matrices of a GGUF file stay in the codes that the file has, in a copy in the user's cache that is mapped into
    memory; its hashes are checked at each start, and the second one is fast. Its config, tokenizer and chat template
    are the file's own, its window is the one that the file states, and its attention is ``"sdpa"``.

    Args:
        name: a GGUF file, a folder of transformers, a name on the hub, a name that ``longspan fetch`` knows, or
            ``"bundled"``.
        method: as ``longspan.extend`` takes it; None leaves the model as it is.
        dtype: what the model computes in: ``"float32"``, ``"bfloat16"`` or ``"float16"``. ``"mixed"``, for packed
            weights on a CPU, is float32 with queries, keys and values in float16, half the memory; and many rows at
            once meet a matrix in bfloat16, if the processor multiplies it natively. ``"auto"`` keeps the checkpoint's;
            for packed weights it is ``"mixed"`` on a CPU, else bfloat16.
        weights: the form of the matrices in memory. ``"as-is"``: of a GGUF file the codes that it has, of another model
            what its checkpoint has. ``"int8"``, ``"int4"``: rounded to codes in groups of 32. ``"fp32"``, ``"bf16"``,
            ``"fp16"``: numbers of this type, which ``dtype`` says as well. ``"auto"``: ``"as-is"``; a GGUF file is
            dequantised if ``dtype`` is given, on a GPU, without a compiler, and if it holds a mixture of experts.
        device: as of torch; ``"auto"`` is a CUDA GPU if there is one, else the CPU.
        quiet: show no progress; else bars are shown if stderr is a terminal.
        options: further ones of ``longspan.extend``, parameters of the method among them.

    Returns:
        The model in eval mode, and the tokenizer.

    Raises:
        LongspanError: the model or its tokenizer cannot be loaded; the file is damaged, or states something that
            transformers' reader of GGUF files does not read; or the model cannot be extended so.
        OSError: the copy of a GGUF file cannot be written.
    """
    if method is None and options:
        raise LongspanError(f'{", ".join(options)}: only a method takes options; name one, such as method="dca"')
    settings = {key: value for key, value in options.items() if key in SETTINGS}
    # Before the weights are loaded, which may take minutes.
    chosen = configured(method, {key: value for key, value in options.items() if key not in SETTINGS}, settings)
    given = fspath(name)
    model = load_model(given, window=settings.get("window"), dtype=dtype, weights=weights, device=device, quiet=quiet)
    tokenizer = load_tokenizer(given, model)
    if method is not None:
        from longspan.hf import extend

        extend(model, chosen, **settings)
    return model, tokenizer


def load_model(
    name: str,
    *,
    window: int | None = None,
    dtype: str = "auto",
    weights: str = "auto",
    device: str = "auto",
    quiet: bool = True,
    bare: bool = False,
) -> transformers.PreTrainedModel:
    """Load a model by a name that ``load`` takes, in eval mode.

    Args:
        window: the trained window in tokens, for a model whose config does not state it.
        bare: leave the weights out: the model lies on the device ``"meta"`` and computes nothing.

    Raises:
        LongspanError: the model cannot be loaded, or neither its config nor ``window`` states its trained window.
    """
    from transformers import PreTrainedConfig

    from longspan.model.window import says_window

    if window is not None:
        check_count("--window", window)
    if dtype != "auto" and dtype not in DTYPES:
        raise LongspanError(
            f"--dtype must be one of auto, {', '.join(DTYPES)}, not {dtype!r}{did_you_mean(dtype, ['auto', *DTYPES])}"
        )
    weights, dtype = form_of(weights, dtype)
    quiet_transformers()
    torch_device = check_device(device)
    source = path_of(name)
    _check_path(source)
    with _loading(source, name), _bars(quiet):
        if is_gguf(source):
            folder, model = from_gguf(Path(source), weights, dtype, torch_device, quiet, bare)
            model.config._name_or_path = source  # what a document states as its model's source
        else:
            folder, model = source, from_folder(source, weights, dtype, torch_device, bare)
        config_dict, _ = PreTrainedConfig.get_config_dict(folder)
    if window is None and not says_window(config_dict, model.config):
        raise LongspanError(
            f"{name}: its config.json has no max_position_embeddings; pass --window, its trained window in tokens"
        )
    return model.eval() if bare else model.to(torch_device).eval()


def load_tokenizer(name: str, model: transformers.PreTrainedModel | None = None) -> Any:
    """Load the tokenizer of a model.

    Args:
        model: that it has to fit, if one is given: an ordinary text never has a token without an embedding.

    Raises:
        LongspanError: it cannot be loaded, or is another model's.
    """
    from transformers import AutoTokenizer

    with _loading(path_of(name), f"the tokenizer of {name}"):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_source(name))
    if model is not None:
        rows = model.get_input_embeddings().weight.shape[0]
        # Special tokens may be beyond: one for padding was often added to a tokenizer alone, and no text has it.
        plain = [id for id, added in getattr(tokenizer, "added_tokens_decoder", {}).items() if not added.special]
        needed = max([tokenizer.vocab_size, *(id + 1 for id in plain)])
        if needed > rows:
            raise LongspanError(
                f"the tokenizer of {name} does not fit the model: its tokens go up to {needed - 1:,}, and the "
                f"model has embeddings of {rows:,}; use the files that belong together"
            )
    return tokenizer


def tokenizer_source(name: str) -> str:
    """What transformers loads the tokenizer of a model from: a folder, or a name on the hub."""
    source = path_of(name)
    return str(tokenizer_folder(Path(source))) if is_gguf(source) else source


def quiet_transformers() -> None:
    """Turn off the progress bars and warnings of transformers, but not its errors."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)


@contextmanager
def _bars(quiet: bool) -> Iterator[None]:
    """Let transformers draw its bars, if stderr is a terminal."""
    from transformers.utils import logging

    if quiet or not sys.stderr.isatty():
        yield
        return
    logging.enable_progress_bar()
    try:
        yield
    finally:
        logging.disable_progress_bar()


def is_gguf(source: str) -> bool:
    """Whether a name is that of a GGUF file."""
    return source.lower().endswith(ENDING) and Path(source).is_file()


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


def _check_path(name: str) -> None:
    """Raise a clear error for an invalid local path; other names are left to transformers and the hub."""
    path = Path(name)
    if "\0" in name or not name.strip():
        raise LongspanError(f"{name!r}: the name contains a NUL" if name.strip() else "the model's name is empty")
    if path.is_file() and not is_gguf(name):
        raise LongspanError(
            f"{name}: is a file and no {ENDING}; pass a GGUF file or the folder of the model's config.json"
        )
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise LongspanError(f"{name}: this folder has no config.json, so it is not a transformers model")
        for file in filter(Path.is_file, (path / file for file in _JSON_FILES)):
            _check_json(file, f"{name}: its {file.name}")
    elif not path.exists() and not _HUB_NAME.fullmatch(name):
        local = path.is_absolute() or name.startswith((".", "~"))
        if name.lower().endswith(ENDING):
            raise LongspanError(f"{name}: this file does not exist")
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
    from longspan.loading.hub import within_reach

    local = Path(name).exists()
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
