"""``longspan analyze``: what the heads of an extended model look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.options import MODEL, Device, Dtype, Json, Quiet, Weights, Window, examples
from longspan.cli.output import hushed, notes, prefill_bar, print_json, say, wide
from longspan.cli.texts import check_text, read_text
from longspan.errors import LongspanError
from longspan.files import check
from longspan.loading.models import load_model, load_tokenizer
from longspan_eval.cli.eval_options import check_folder, parse_lengths
from longspan_eval.cli.tasks import no_task

if TYPE_CHECKING:
    from rich.console import Console

    from longspan.methods import Method
    from longspan_eval.analysis.study import Inspection, Question
    from longspan_eval.task import Task

SAMPLES = 10


@examples(
    "longspan analyze --model bundled --method longheads:score=bounds --task passkey --out look",
    "longspan analyze --method dca:chunk_size=6,local_window=4 --window 10 --out positions",
)
def analyze(
    method: Annotated[
        str, typer.Option(help="A method, such as esa or, with parameters, longheads:score=bounds,num_chunks=8.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write tables, pictures and pages to.")],
    model: Annotated[str | None, typer.Option(help=MODEL)] = None,
    task: Annotated[str | None, typer.Option(help="A synthetic task, such as passkey or passkey-prose.")] = None,
    file: Annotated[Path | None, typer.Option(help="A text file to read instead of a task; - is stdin.")] = None,
    prompt: Annotated[str, typer.Option(help="The question, which follows the file's text.")] = "",
    answer: Annotated[str | None, typer.Option(help="The answer in the file's words, for hit rates.")] = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", "--length", help="Lengths in tokens (4096, 4k) or windows (4x).")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help=f"The number of prompts per length, for a task; default: {SAMPLES}.", min=1)
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(help="Tokens per chunk in the figures; default: the method's.", min=1)
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A file of reduced scores for esa; the recall per layer is reported.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed of the first prompt, for a task; default: 0.", min=0)
    ] = None,
    window: Window = None,
    dtype: Dtype = "auto",
    weights: Weights = "auto",
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Record the keys that heads choose when the answer begins: how many, how evenly, and whether they hold the answer.

    Write a table by length, a picture and a page with the text for each length, and all figures as JSON. For a method
    that chooses no keys, such as dca, write the matrix of its relative positions; this requires --window and no model.
    """
    from longspan.methods.parse import parse_method

    console = notes(quiet)
    chosen = parse_method(method)
    check_folder(out)
    if not chosen.selects:
        idle = {
            "--model": model, "--task": task, "--file": file, "--prompt": prompt or None, "--answer": answer,
            "--samples": samples, "--seed": seed, "--chunk": chunk, "--calibration": calibration,
            "--dtype": None if dtype == "auto" else dtype, "--weights": None if weights == "auto" else weights,
            "--device": None if device == "auto" else device,
        }  # fmt: skip
        _positions(chosen, lengths, window, out, console, as_json, idle=_given(idle))
        return
    if model is None:
        raise LongspanError("--model is missing: name a model folder, a hub name, or 'bundled'")
    _check_source(task, file, prompt, answer, _given({"--samples": samples, "--seed": seed}))
    made = None if task is None else _synthetic(task)
    text = None if file is None else read_text(file)
    loaded = load_model(model, window=window, dtype=dtype, weights=weights, device=device, quiet=quiet)
    tokenizer = load_tokenizer(model, loaded)
    import torch

    import longspan
    from longspan.hf import measure_recall
    from longspan.hf.calibration.calibrate import recall_span
    from longspan.hf.calibration.check import model_name
    from longspan_eval.analysis.study import inspect, summarise
    from longspan_eval.cli.analyzed import Analyzed

    try:
        with hushed(quiet):
            report = longspan.extend(loaded, chosen, window=window, calibration=calibration)
        prompts = list(
            _task_prompts(made, tokenizer, lengths, report.window, samples or SAMPLES, seed or 0)
            if made is not None
            else _file_prompts(str(text), prompt, answer, tokenizer, lengths, report.window)
        )
        if calibration is not None:
            recall_span(max(len(one.ids) for _, one in prompts), report.window)
        out.mkdir(parents=True, exist_ok=True)
        check(out / "analysis.json")  # better to hear now than after the reading
        inspections: dict[int, list[Inspection]] = {}
        for n, (length, one) in enumerate(prompts):
            say(console, f"reading {n + 1} of {len(prompts)}, {len(one.ids):,} tokens")
            with prefill_bar(loaded, quiet):
                inspections.setdefault(length, []).append(inspect(loaded, tokenizer, one, chunk=chunk))
        rows = [summarise(length, found) for length, found in inspections.items()]
        recall = None
        if calibration is not None:
            longest = torch.tensor(max((one.ids for _, one in prompts), key=len))
            made_from = longspan.Calibration.load(calibration)
            recall = measure_recall(loaded, [made_from], [longest], window=window, progress=not quiet)
    except LongspanError:
        raise
    except ValueError as error:
        raise LongspanError(str(error)) from error
    about = {"model": model_name(loaded), "task": task, "seed": seed or 0}
    analyzed = Analyzed(about, chosen, report, rows, inspections, recall)
    files = analyzed.write(out, tokenizer)
    if as_json:
        print_json(analyzed.to_dict())
    else:
        wide().print(analyzed)
    say(console, f"in {out}: {', '.join(files)}")


def _check_source(
    task: str | None, file: Path | None, prompt: str, answer: str | None, for_tasks: Sequence[str]
) -> None:
    """Raise if what is to be read is not one thing; ``for_tasks`` names the options given that only a task has."""
    if (task is None) == (file is None):
        raise LongspanError("pass either --task, such as passkey, or --file")
    if task is not None and (prompt or answer is not None):
        raise LongspanError("--prompt and --answer require --file; a task has its own")
    if file is not None and for_tasks:
        raise LongspanError(f"{', '.join(for_tasks)}: valid only with --task; a file gives one prompt per length")
    check_text("--prompt", prompt)
    check_text("--answer", answer or "")
    if answer is not None and not answer.strip():
        raise LongspanError("--answer is empty")


def _given(options: Mapping[str, Any]) -> list[str]:
    """The names of the options that have a value."""
    return [name for name, value in options.items() if value is not None]


def _synthetic(name: str) -> Task:
    from longspan_eval.tasks import TASKS

    if name not in TASKS:
        raise LongspanError(no_task(name))
    if TASKS[name].data is not None:
        raise LongspanError(f"--task {name} reads a file of its own; take a synthetic one such as passkey, or --file")
    return TASKS[name]


def _task_prompts(
    task: Task, tokenizer: Any, lengths: str | None, window: int, samples: int, seed: int
) -> Iterator[tuple[int, Question]]:
    from longspan_eval.analysis.study import Question

    for length in dict.fromkeys(parse_lengths(lengths or "2x,4x", window)):
        for n in range(samples):
            one = Question.of_task(task, tokenizer, length=length, seed=seed + n)
            _beyond(len(one.ids), window, length)
            yield length, one


def _file_prompts(
    text: str, question: str, answer: str | None, tokenizer: Any, lengths: str | None, window: int
) -> Iterator[tuple[int, Question]]:
    """The first tokens of a text and the question after them, one prompt a length."""
    from longspan.text.encode import beginning, encode
    from longspan_eval.analysis.locate import locate
    from longspan_eval.analysis.study import Question

    body = beginning(tokenizer) + encode(tokenizer, text)
    asked = encode(tokenizer, f"\n{question}") if question else []
    whole = len(body) + len(asked)
    for length in dict.fromkeys((whole,) if lengths is None else parse_lengths(lengths, window)):
        if length > whole:
            raise LongspanError(f"the text has {whole:,} tokens with the question, fewer than the {length:,} asked for")
        if length <= len(asked):
            raise LongspanError(f"the question alone takes {len(asked):,} of {length:,} tokens: give a greater length")
        ids = body[: length - len(asked)]
        _beyond(length, window, length)
        places = () if answer is None else tuple(locate(tokenizer, ids, answer))
        if answer is not None and not places:
            raise LongspanError(f"the first {len(ids):,} tokens of the text do not contain {answer!r}")
        yield length, Question(ids + asked, places)


def _beyond(tokens: int, window: int, length: int) -> None:
    if tokens <= window:
        raise LongspanError(
            f"a prompt of {tokens:,} tokens (length {length:,}) fits the window of {window:,}, inside which nothing is "
            "chosen; give greater --lengths"
        )


def _positions(
    method: Method,
    lengths: str | None,
    window: int | None,
    out: Path,
    console: Console,
    as_json: bool,
    *,
    idle: Sequence[str],
) -> None:
    """Relative positions of a method that keeps keys by their index; ``idle``: options that play no part in it."""
    if idle:
        raise LongspanError(
            f"{method.name} keeps keys by their index and chooses none; leave {', '.join(idle)} out to draw its "
            "relative positions, or take longheads, esa, infllm, or lm-infinite with middle_top_k"
        )
    if window is None:
        raise LongspanError(f"--window is missing: pass the window in tokens to draw {method.name} for")
    try:
        resolved = method.resolve(window)
    except ValueError as error:
        raise LongspanError(str(error)) from error
    from longspan_eval.cli.analyzed import positions

    wanted = parse_lengths(lengths or "2x", window)
    body, files = positions(method, resolved, window, wanted, out)
    if as_json:
        print_json(body)
    say(console, f"in {out}: {', '.join(files)}")
