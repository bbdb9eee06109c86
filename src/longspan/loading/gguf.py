"""GGUF files, as llama.cpp, Ollama and LM Studio have them, opened by transformers' reader.

The reader leaves out what it does not know, so that the model would compute something else without a word. What a
file says is therefore held against what came of it, and a difference is an error.
"""

from __future__ import annotations

import gc
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan import files
from longspan.errors import LongspanError
from longspan.install import pip_install
from longspan.loading.copies import copy_of
from longspan.loading.header import Header, rope_of, tokenizer_splits

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_NEEDED = ("accelerate", "gguf")  # what transformers' reader imports
ENDING = ".gguf"


def weights_folder(file: Path, dtype: str, *, quiet: bool = True) -> Path:
    """A folder with a GGUF file's model in the form of transformers, for ``from_pretrained``; made once and kept.

    Args:
        dtype: the name of a type to dequantise to; ``"auto"`` is the file's own floating type, and float32 if its
            weights are quantised: what a scale of 16 bits times a number of 4 gives has more digits than bfloat16.
        quiet: show no bars.

    Raises:
        LongspanError: the file is damaged, or states something that transformers' reader does not read.
        OSError: the copy cannot be written.
    """
    header = read_header(file)
    wanted = header.dtype if dtype == "auto" else dtype
    return copy_of(file, wanted, lambda folder: _convert(header, wanted, folder, quiet))


def tokenizer_folder(file: Path) -> Path:
    """A folder with a GGUF file's tokenizer and chat template, made once and kept; raises as ``weights_folder``."""
    header = read_header(file)
    return copy_of(file, "tokenizer", lambda folder: _convert_tokenizer(header, folder))


def read_header(file: Path) -> Header:
    """What a GGUF file says of itself; raises as ``weights_folder``."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise LongspanError(f"{file}: GGUF files need {' and '.join(missing)}: {pip_install('gguf')}")
    return Header.read(file)


def packed_folder(file: Path, form: str, *, quiet: bool = True) -> Path:
    """A folder with a GGUF file's model for ``loading.packed.packed_model``; made once and kept.

    Args:
        form: of ``longspan.weights.FORMS``.

    Raises:
        LongspanError: as ``weights_folder``; or a matrix cannot stay packed.
        OSError: the copy cannot be written.
    """
    header = read_header(file)
    return copy_of(file, f"weights-{form}", lambda folder: _pack(header, form, folder, quiet))


def _pack(header: Header, form: str, folder: Path, quiet: bool) -> None:
    from longspan.loading.packed import convert

    header.check_weights()
    _refuse_too_large(header, None, header.packed_bytes(form))
    if not quiet:
        print(f"{header.file.name}: packing its weights once, in {folder.parents[2]}", file=sys.stderr)
    with _bars(quiet):
        convert(header, _config(header), form, folder)


def _config(header: Header) -> Any:
    """The config of a file's model, as transformers reads it and as the file states what that leaves out."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(header.file.parent), gguf_file=header.file.name)
    if config.model_type == "mistral" and header.says("attention.sliding_window") is None:
        config.sliding_window = None  # the config's default is a window that the file does not have
    if header.says("attention.key_length") is not None and hasattr(config, "head_dim"):
        config.head_dim = header.says("attention.key_length")  # which the reader takes of some kinds of models only
    header.check_config(config)
    scaled = rope_of(header, config)
    if scaled is not None:
        config.rope_parameters = scaled
    return config


def _convert(header: Header, dtype: str, folder: Path, quiet: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    header.check_weights()
    _refuse_too_large(header, getattr(torch, dtype), header.parameters * getattr(torch, dtype).itemsize)
    place, name = str(header.file.parent), header.file.name
    if not quiet:
        size = header.parameters * getattr(torch, dtype).itemsize / 1e6
        print(
            f"{name}: dequantising to {dtype} once; the copy takes {size:,.0f} MB in {folder.parents[2]}",
            file=sys.stderr,
        )
    with _bars(quiet):
        model, found = AutoModelForCausalLM.from_pretrained(
            place,
            gguf_file=name,
            config=_config(header),
            dtype=getattr(torch, dtype),
            ignore_mismatched_sizes=True,  # they are told by name below
            output_loading_info=True,
        )
    _check_loaded(header, model, found)
    # It is dequantised, and transformers would not save what it takes for quantised.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.config.__dict__.pop("_model_name_or_path", None)
    model.save_pretrained(folder)
    del model
    gc.collect()  # the copy is loaded next, and both may not fit


def _convert_tokenizer(header: Header, folder: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    splits = tokenizer_splits(header)
    with _bars(quiet=True):
        tokenizer = AutoTokenizer.from_pretrained(str(header.file.parent), gguf_file=header.file.name)
    if splits is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = splits
    tokenizer.save_pretrained(folder)
    # The reader's classes add special tokens of their own; the model has no rows for those.
    size, saved = header.metadata["tokenizer.ggml.tokens"], folder / "tokenizer.json"
    written = json.loads(saved.read_text(encoding="utf-8"))
    written["added_tokens"] = [token for token in written["added_tokens"] if token["id"] < size]
    files.write(saved, json.dumps(written, ensure_ascii=False))
    made = Tokenizer.from_file(str(saved)).get_vocab_size()
    if made != size:
        raise LongspanError(
            f"{header.file}: its vocabulary has {size:,} tokens, and transformers' reader makes {made:,} of them"
        )


def _refuse_too_large(header: Header, dtype: torch.dtype | None, needed: int) -> None:
    """Raise if the weights, of ``needed`` bytes, do not fit into memory; ``dtype`` is None if they stay packed."""
    import torch

    from longspan.machine.memory import free_memory

    free = free_memory(torch.device("cpu"))
    if free is not None and needed > free:
        form = "packed" if dtype is None else f"in {str(dtype).removeprefix('torch.')}"
        smaller = "" if dtype is None else f", --weights as-is ({header.packed_bytes('as-is') / 2**30:,.1f} GiB)"
        raise LongspanError(
            f"{header.file}: its weights take {needed / 2**30:,.1f} GiB {form}, and {free / 2**30:,.1f} GiB of memory "
            f"are free; take a smaller model{smaller} or a machine with more memory"
        )


def _check_loaded(header: Header, model: PreTrainedModel, found: dict[str, Any]) -> None:
    """Raise unless every tensor of the file became a weight of the model, and every weight came from it."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = sorted(set(found["missing_keys"]) - tied)
    wrong = sorted(str(each[0] if isinstance(each, tuple) else each) for each in found["mismatched_keys"])
    for names, what in ((missing, "lacks"), (wrong, "has in another shape")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise LongspanError(f"{header.file}: the file {what} what the model calls {names[0]}{more}")
    placed = sum(weight.numel() for weight in model.parameters())
    if placed != header.parameters:
        raise LongspanError(
            f"{header.file}: transformers' reader places {placed:,} numbers of its {header.parameters:,}, so the model "
            "would compute something else; load the model from a folder of transformers instead"
        )
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise LongspanError(f"{header.file}: {name} has numbers that are not finite; the file is damaged")


@contextmanager
def _bars(quiet: bool) -> Iterator[None]:
    """Show the reader's bars on a terminal; it draws one of them wherever stderr leads."""
    shown = not quiet and sys.stderr.isatty()
    with nullcontext() if shown else redirect_stderr(io.StringIO()):
        yield
