"""``longspan generate``: ask a model about a text longer than its window."""

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
    say,
)
from longspan.errors import LongspanError


def generate(
    model: Annotated[str, typer.Option(help="A model folder, a hub name, or 'bundled'.")],
    prompt: Annotated[str, typer.Option(help="What to ask, after the file's text.")],
    file: Annotated[Path | None, typer.Option(help="A text to read first; - is stdin.")] = None,
    method: Annotated[
        str, typer.Option(help="A method, see `longspan methods`, or with parameters: dca:chunk_size=256; or 'auto'.")
    ] = "dca",
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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read a text and answer, typing as it goes. The answer goes to stdout, all else to stderr.

    With --json the answer comes when it is whole, with how many tokens were read and written in which time.
    """
    check_text("--prompt", prompt)
    if not prompt.strip():
        raise LongspanError("the prompt is empty")
    text = prompt if file is None else f"{read_text(file)}\n{prompt}"
    chosen = method_or_auto(method, settings or (), angles)
    loaded = load_model(model, window=window, dtype=dtype, device=device)
    import torch
    from transformers import TextStreamer

    import longspan
    from longspan.hf.fitting import model_name
    from longspan.methods.parse import written

    tokenizer = load_tokenizer(model)
    inputs = _encode(tokenizer, text, chat).to(loaded.device)
    tokens = inputs["input_ids"].shape[1]
    try:
        with hushed(quiet):
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
    name = written(chosen) if not isinstance(chosen, str) else report.method.name
    console = notes(quiet)
    say(console, f"{tokens:,} tokens, window {report.window:,}, {name}")
    for warning in report.warnings:
        say(console, f"note: {warning}")
    typed = None if as_json else TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    timed = _Timed(typed)
    with torch.inference_mode(), prefill_bar(loaded, quiet):
        out = loaded.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, streamer=timed)
    figures = {"prompt_tokens": tokens, "new_tokens": timed.tokens, **timed.figures(tokens)}
    if as_json:
        answer = tokenizer.decode(out[0, tokens:], skip_special_tokens=True)
        about = {"model": model_name(loaded), "method": name, "window": report.window}
        print_json({**about, "answer": answer, **figures, "warnings": list(report.warnings)})
    else:
        say(console, _in_words(figures))


class _Timed:
    """A streamer of ``generate`` that takes the time, and hands on what it is given.

    Attributes:
        tokens: how many were written.
    """

    def __init__(self, inner: Any) -> None:
        self._inner, self.tokens = inner, -1  # the prompt is handed over first
        self._begun = self._read = self._last = time.perf_counter()

    def put(self, value: Any) -> None:
        self._last = time.perf_counter()
        self.tokens += 1
        if self.tokens == 0:
            self._begun = self._last
        elif self.tokens == 1:
            self._read = self._last
        if self._inner is not None:
            self._inner.put(value)

    def end(self) -> None:
        if self._inner is not None:
            self._inner.end()

    def figures(self, prompt: int) -> dict[str, float | None]:
        """Seconds, and tokens a second: of the prompt up to the first token, and of the tokens after that one."""
        read, wrote = self._read - self._begun, self._last - self._read
        return {
            "prefill_seconds": round(read, 4),
            "prefill_tokens_per_second": round(prompt / read, 2) if read > 0 else None,
            "decode_seconds": round(wrote, 4),
            "decode_tokens_per_second": round((self.tokens - 1) / wrote, 2) if wrote > 0 and self.tokens > 1 else None,
        }


def _in_words(figures: dict[str, Any]) -> str:
    words = f"read {figures['prompt_tokens']:,} tokens in {figures['prefill_seconds']:.1f} s"
    words += f" ({figures['prefill_tokens_per_second']:,.0f} tokens/s)"
    words += f", wrote {figures['new_tokens']:,}"
    rate = figures["decode_tokens_per_second"]
    return words if rate is None else f"{words} ({rate:,.1f} tokens/s)"


def _encode(tokenizer: Any, text: str, chat: bool) -> Any:
    """One row of ``input_ids`` and ``attention_mask``."""
    if chat and getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
    return tokenizer(text, return_tensors="pt", return_token_type_ids=False)
