"""``longspan generate``: generate an answer about a text longer than the model's window."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli import options, sampling
from longspan.cli.ask import drafts_plain, drafts_words, typed
from longspan.cli.output import hushed, notes, prefill_bar, print_json, refusals, say
from longspan.cli.texts import check_text, read_text
from longspan.errors import LongspanError
from longspan.loading.models import load_model, load_tokenizer


@options.examples(
    'longspan generate bundled "Once upon a time"',
    'longspan methods | longspan generate bundled "The methods are" --file - --method dca',
)
def generate(
    model_argument: Annotated[str | None, typer.Argument(metavar="MODEL", help=options.MODEL)] = None,
    prompt_argument: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The question, which follows the file's text.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model, in place of MODEL.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The question, in place of PROMPT.")] = None,
    file: Annotated[Path | None, typer.Option(help="A text that precedes the prompt; - is stdin.")] = None,
    method: options.MethodOption = "auto",
    window: options.Window = None,
    settings: options.Parameters = None,
    angles: options.ScaledAngles = None,
    calibration: options.CalibrationFile = None,
    kv_tier: options.KvTier = "device",
    kv_dir: options.KvDir = None,
    max_new_tokens: options.AnswerTokens = 128,
    draft: options.Draft = None,
    temperature: sampling.Temperature = None,
    top_p: sampling.TopP = None,
    top_k: sampling.TopK = None,
    repetition_penalty: sampling.RepetitionPenalty = None,
    seed: sampling.Seed = None,
    stop: sampling.Stop = None,
    dtype: options.Dtype = "auto",
    weights: options.Weights = "auto",
    device: options.Device = "auto",
    graphed: Annotated[bool, typer.Option(help="Decode from a CUDA graph; it needs a GPU.")] = False,
    chat: Annotated[bool, typer.Option(help="Use the tokenizer's chat template, if it has one.")] = True,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read a text and stream an answer to stdout. All other output goes to stderr.

    With --json, print the complete answer with the numbers of tokens and the times of reading and generation.
    """
    words = [word for word in (model_argument, prompt_argument) if word is not None]
    model = words.pop(0) if model is None and words else model
    named = "PROMPT" if prompt is None else "--prompt"
    prompt = words.pop(0) if prompt is None and words else prompt
    if model is None or prompt is None:
        missing = "PROMPT is" if model is not None else "MODEL is"
        raise LongspanError(f"{missing} missing: longspan generate MODEL PROMPT, or --model and --prompt")
    if words:
        raise LongspanError(f"{words[0]!r} is too much: --model and --prompt stand in place of MODEL and PROMPT")
    check_text(named, prompt)
    if not prompt.strip():
        raise LongspanError("the prompt is empty")
    text = prompt if file is None else f"{read_text(file)}\n{prompt}"
    chosen_options = sampling.generate_options(
        temperature=temperature, top_p=top_p, top_k=top_k, repetition_penalty=repetition_penalty, seed=seed, stop=stop
    )
    selected = options.method_or_auto(method, settings or (), angles)
    loaded = load_model(model, window=window, dtype=dtype, weights=weights, device=device, quiet=quiet)
    import torch

    import longspan
    from longspan.documents.writing import Writing
    from longspan.hf.calibration.check import model_name
    from longspan.methods.parse import written

    tokenizer = load_tokenizer(model, loaded)
    inputs = _encode(tokenizer, text, chat).to(loaded.device)
    tokens = inputs["input_ids"].shape[1]
    with hushed(quiet), refusals():
        report = longspan.extend(
            loaded, selected, window=window, calibration=calibration, length=tokens + max_new_tokens, kv_dir=kv_dir,
            kv_tier=kv_tier, draft=draft,  # type: ignore[arg-type]  # extend checks the values
        )  # fmt: skip
    name = written(selected if not isinstance(selected, str) else report.method)
    console = notes(quiet)
    say(console, f"{tokens:,} tokens, window {report.window:,}, {name}")
    for warning in report.warnings:
        say(console, f"note: {warning}")
    writing = Writing(loaded, tokenizer, chosen_options, None if as_json else typed)
    timer = _TimingStreamer(writing)
    recorded = longspan.graphed(loaded) if graphed else nullcontext()
    with torch.inference_mode(), prefill_bar(loaded, quiet), recorded, writing.settings(max_new_tokens) as arguments:
        out = loaded.generate(**inputs, **arguments, streamer=timer)
    answer, finish = writing.result(out[0, tokens:].tolist(), max_new_tokens)
    figures, drafts = timer.figures(tokens), longspan.drafts_of(loaded)
    if as_json:
        about = {"model": model_name(loaded), "method": name, "window": report.window}
        print_json(
            {
                **about,
                "answer": answer,
                "finish": finish,
                **figures,
                **drafts_plain(drafts),
                "warnings": list(report.warnings),
            }
        )
    else:
        typed("\n")
        say(console, _in_words(figures) + drafts_words(drafts) + sampling.cut_words(finish, max_new_tokens))


class _TimingStreamer:
    """A streamer for ``generate`` that measures times and forwards values to another streamer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._times: list[float] = []  # of the prompt, then of each token

    def put(self, value: Any) -> None:
        self._times.append(time.perf_counter())
        self._inner.put(value)

    def end(self) -> None:
        self._inner.end()

    def figures(self, prompt: int) -> dict[str, float | None]:
        """Tokens, and seconds and tokens per second of prefill, up to the first token, and of decoding, after it.

        Args:
            prompt: the number of tokens of the prompt.
        """
        tokens, first = len(self._times) - 1, self._times[1]
        prefill, decode = first - self._times[0], self._times[-1] - first
        return {
            "prompt_tokens": prompt,
            "new_tokens": tokens,
            "prefill_seconds": round(prefill, 4),
            "prefill_tokens_per_second": round(prompt / prefill, 2) if prefill > 0 else None,
            "decode_seconds": round(decode, 4),
            "decode_tokens_per_second": round((tokens - 1) / decode, 2) if decode > 0 else None,
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
