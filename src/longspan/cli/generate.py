"""``longspan generate``: ask a model about a text longer than its window."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import TextStreamer

import longspan
from longspan.cli.options import load_model, load_tokenizer, method_or_auto, read_text
from longspan.errors import LongspanError


def generate(
    model: Annotated[str, typer.Option(help="A model folder, a hub name, or 'bundled'.")],
    prompt: Annotated[str, typer.Option(help="What to ask, after the file's text.")],
    file: Annotated[Path | None, typer.Option(help="A text to read first.")] = None,
    method: Annotated[str, typer.Option(help="A method, see `longspan methods`, or 'auto'.")] = "dca",
    window: Annotated[int | None, typer.Option(help="The trained window in tokens; else the config's.", min=1)] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the method; repeatable.")
    ] = None,
    angles: Annotated[str | None, typer.Option(help="Scaled angles under the method: pi, ntk, ...")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Reduced scores, made by `longspan calibrate`.")] = None,
    kv_tier: Annotated[str, typer.Option(help="Where the cache lies: device, host or disk.")] = "device",
    kv_dir: Annotated[Path | None, typer.Option(help="For the tier disk: a folder on a fast disk.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Length of the answer at most.", min=1)] = 128,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    chat: Annotated[bool, typer.Option(help="Use the tokenizer's chat template, if it has one.")] = True,
) -> None:
    """Read a text and answer, typing as it goes. The answer goes to stdout, all else to stderr."""
    if not prompt.strip():
        raise LongspanError("the prompt is empty")
    text = prompt if file is None else f"{read_text(file)}\n{prompt}"
    chosen = method_or_auto(method, settings or (), angles)
    loaded = load_model(model, window=window, dtype=dtype, device=device)
    tokenizer = load_tokenizer(model)
    inputs = _encode(tokenizer, text, chat).to(loaded.device)
    tokens = inputs["input_ids"].shape[1]
    try:
        report = longspan.extend(
            loaded,
            chosen,
            window=window,
            calibration=calibration,
            kv_tier=kv_tier,  # type: ignore[arg-type]  # extend says what the tiers are
            kv_dir=kv_dir,
            length=tokens + max_new_tokens,
        )
    except ValueError as error:
        raise LongspanError(str(error)) from error
    print(f"{tokens:,} tokens, window {report.window:,}, {report.method.name}", file=sys.stderr)
    for warning in report.warnings:
        print(f"note: {warning}", file=sys.stderr)
    with torch.inference_mode():
        loaded.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        )


def _encode(tokenizer: Any, text: str, chat: bool) -> Any:
    """One row of ``input_ids`` and ``attention_mask``."""
    if chat and getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
    return tokenizer(text, return_tensors="pt", return_token_type_ids=False)
