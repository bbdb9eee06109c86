"""``longspan generate``: generate an answer about a text longer than the model's window."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.options import (
    Json,
    Quiet,
    check_text,
    hushed,
    load_model,
    load_tokenizer,
    method_or_auto,
    notes,
    prefill_bar,
    print_json,
    read_text,
    refusals,
    say,
)
from longspan.cli.parameters import (
    AnswerTokens,
    CalibrationFile,
    Device,
    Dtype,
    MethodOption,
    ModelOption,
    Parameters,
    ScaledAngles,
    Window,
)
from longspan.errors import LongspanError


def generate(
    model: ModelOption,
    prompt: Annotated[str, typer.Option(help="The question, which follows the file's text.")],
    file: Annotated[Path | None, typer.Option(help="A text that precedes the prompt; - is stdin.")] = None,
    method: MethodOption = "dca",
    window: Window = None,
    settings: Parameters = None,
    angles: ScaledAngles = None,
    calibration: CalibrationFile = None,
    kv_tier: Annotated[
        str,
        typer.Option(help="The storage of the cache: device, host or disk; auto moves it when memory is nearly full."),
    ] = "device",
    kv_dir: Annotated[
        Path | None,
        typer.Option(
            help="The folder for --kv-tier disk or auto, on a fast disk; default: the folder for temporary files."
        ),
    ] = None,
    max_new_tokens: AnswerTokens = 128,
    dtype: Dtype = "auto",
    device: Device = "auto",
    chat: Annotated[bool, typer.Option(help="Use the tokenizer's chat template, if it has one.")] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read a text and stream an answer to stdout. All other output goes to stderr.

    With --json, print the complete answer with the numbers of tokens and the times of reading and generation.
    """
    check_text("--prompt", prompt)
    if not prompt.strip():
        raise LongspanError("the prompt is empty")
    text = prompt if file is None else f"{read_text(file)}\n{prompt}"
    selected = method_or_auto(method, settings or (), angles)
    loaded = load_model(model, window=window, dtype=dtype, device=device)
    import torch
    from transformers import TextStreamer

    import longspan
    from longspan.hf.fitting import model_name
    from longspan.methods.parse import written

    tokenizer = load_tokenizer(model)
    inputs = _encode(tokenizer, text, chat).to(loaded.device)
    tokens = inputs["input_ids"].shape[1]
    with hushed(quiet), refusals():
        report = longspan.extend(
            loaded,
            selected,
            window=window,
            calibration=calibration,
            kv_tier=kv_tier,  # type: ignore[arg-type]  # extend checks the value
            kv_dir=kv_dir,
            length=tokens + max_new_tokens,
        )
    name = written(selected) if not isinstance(selected, str) else report.method.name
    console = notes(quiet)
    say(console, f"{tokens:,} tokens, window {report.window:,}, {name}")
    for warning in report.warnings:
        say(console, f"note: {warning}")
    printer = None if as_json else TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    timer = _TimingStreamer(printer)
    with torch.inference_mode(), prefill_bar(loaded, quiet):
        out = loaded.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, streamer=timer)
    figures = {"prompt_tokens": tokens, "new_tokens": timer.tokens, **timer.figures(tokens)}
    if as_json:
        answer = tokenizer.decode(out[0, tokens:], skip_special_tokens=True)
        about = {"model": model_name(loaded), "method": name, "window": report.window}
        print_json({**about, "answer": answer, **figures, "warnings": list(report.warnings)})
    else:
        say(console, _in_words(figures))


class _TimingStreamer:
    """A streamer for ``generate`` that measures times and forwards values to another streamer.

    Attributes:
        tokens: the number of generated tokens.
    """

    def __init__(self, inner: Any) -> None:
        self._inner, self.tokens = inner, -1  # the first put is the prompt
        self._start = self._first = self._last = time.perf_counter()

    def put(self, value: Any) -> None:
        self._last = time.perf_counter()
        self.tokens += 1
        if self.tokens == 0:
            self._start = self._last
        elif self.tokens == 1:
            self._first = self._last
        if self._inner is not None:
            self._inner.put(value)

    def end(self) -> None:
        if self._inner is not None:
            self._inner.end()

    def figures(self, prompt: int) -> dict[str, float | None]:
        """Seconds and tokens per second: of prefill, up to the first token, and of decoding, after it.

        Args:
            prompt: the number of tokens of the prompt.
        """
        prefill, decode = self._first - self._start, self._last - self._first
        rate = round((self.tokens - 1) / decode, 2) if decode > 0 and self.tokens > 1 else None
        return {
            "prefill_seconds": round(prefill, 4),
            "prefill_tokens_per_second": round(prompt / prefill, 2) if prefill > 0 else None,
            "decode_seconds": round(decode, 4),
            "decode_tokens_per_second": rate,
        }


def _in_words(figures: dict[str, Any]) -> str:
    words = f"read {figures['prompt_tokens']:,} tokens in {figures['prefill_seconds']:.1f} s"
    words += f" ({figures['prefill_tokens_per_second']:,.0f} tokens/s)"
    words += f", wrote {figures['new_tokens']:,}"
    rate = figures["decode_tokens_per_second"]
    return words if rate is None else f"{words} ({rate:,.1f} tokens/s)"


def _encode(tokenizer: Any, text: str, chat: bool) -> Any:
    """``input_ids`` and ``attention_mask``, ``[1, T]`` each."""
    if chat and getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
    return tokenizer(text, return_tensors="pt", return_token_type_ids=False)
