"""``longspan analyze``: what the heads of an extended model look at."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import longspan
from longspan.analysis.locate import locate
from longspan.analysis.page import chunk_texts, write_page
from longspan.analysis.pictures import draw_positions, draw_selection, require_plot
from longspan.analysis.study import Found, Look, Prompt, Row, look, summarise
from longspan.calibration import RecallReport
from longspan.cli.eval import parse_lengths
from longspan.cli.options import load_model, load_tokenizer, read_text
from longspan.errors import LongspanError
from longspan.evaluation.filler import encode, start
from longspan.evaluation.study import versions
from longspan.evaluation.task import Task
from longspan.evaluation.tasks import TASKS
from longspan.files import check, write
from longspan.hf import Report, measure_recall
from longspan.hf.fitting import model_name
from longspan.methods import Method
from longspan.methods.parse import parse_method


def analyze(
    method: Annotated[
        str, typer.Option(help="longheads, esa, infllm, ... or with parameters: longheads:score=bounds,num_chunks=8.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the table, the pictures and the pages.")],
    model: Annotated[str | None, typer.Option(help="A model folder, a hub name, or 'bundled'.")] = None,
    task: Annotated[str | None, typer.Option(help="A made task to read, such as passkey or passkey-prose.")] = None,
    file: Annotated[Path | None, typer.Option(help="A text of your own to read instead.")] = None,
    prompt: Annotated[str, typer.Option(help="What to ask, after the file's text.")] = "",
    answer: Annotated[str | None, typer.Option(help="Where the file says this is the answer, for hit rates.")] = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", "--length", help="Tokens: 4096 or 4k; 4x is four windows.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Prompts a length, for a task.", min=1)] = 10,
    chunk: Annotated[
        int | None, typer.Option(help="Tokens of a chunk in the figures; the method's own unless given.", min=1)
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Reduced scores for esa; their recall by layer is measured too.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The first prompt's.")] = 0,
    window: Annotated[int | None, typer.Option(help="The trained window in tokens; else the config's.", min=1)] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
) -> None:
    """Record what the heads choose when the answer begins: how much, how evenly, and whether the answer is in it.

    A table by length, a picture and a page with the text for each, and all figures as JSON. For a method that chooses
    nothing, such as dca, the matrix of its relative positions; that takes no model, only --window.
    """
    chosen = parse_method(method)
    if out.exists() and not out.is_dir():
        raise LongspanError(f"--out {out}: is a file; name a folder")
    require_plot()
    if not chosen.selects:
        _positions(chosen, lengths, window, out, given=[task, file, model])
        return
    if model is None:
        raise LongspanError("say with --model which model to look at: a folder, a hub name, or 'bundled'")
    if (task is None) == (file is None):
        raise LongspanError("say what to read: either --task, such as passkey, or --file")
    if task is not None and (prompt or answer is not None):
        raise LongspanError("--prompt and --answer are for --file; a task brings its own")
    if answer is not None and not answer.strip():
        raise LongspanError("--answer is empty")
    made = None if task is None else _made(task)
    text = None if file is None else read_text(file)
    loaded, tokenizer = load_model(model, window=window, dtype=dtype, device=device), load_tokenizer(model)
    try:
        report = longspan.extend(loaded, chosen, window=window, calibration=calibration)
        prompts = list(
            _task_prompts(made, tokenizer, lengths, report.window, samples, seed)
            if made is not None
            else _file_prompts(str(text), prompt, answer, tokenizer, lengths, report.window)
        )
        out.mkdir(parents=True, exist_ok=True)
        check(out / "analysis.json")  # better to hear now than after the reading
        looks: dict[int, list[Look]] = {}
        for n, (length, one) in enumerate(prompts):
            _say(f"reading {n + 1} of {len(prompts)}, {len(one.ids):,} tokens")
            looks.setdefault(length, []).append(look(loaded, tokenizer, one, chunk=chunk))
        rows = [summarise(length, found) for length, found in looks.items()]
        recall = None
        if calibration is not None:
            longest = torch.tensor(max((one.ids for _, one in prompts), key=len))
            made_from = longspan.Calibration.load(calibration)
            recall = measure_recall(loaded, [made_from], [longest], window=window, progress=sys.stderr.isatty())
    except LongspanError:
        raise
    except ValueError as error:
        raise LongspanError(str(error)) from error
    named = model_name(loaded)
    files: list[str] = []
    for length, found in looks.items():
        files += _draw(out, tokenizer, report, named, length, found[0], task)
    if recall is not None:
        recall.plot(out / "recall.png")
        files.append("recall.png")
    about = {"model": named, "task": task, "seed": seed}
    _write(out / "analysis.json", about, report, rows, looks, recall)
    console = Console(highlight=False)
    console.print(_table(rows, report))
    if recall is not None:
        console.print(recall)
    _say(f"in {out}: {', '.join(['analysis.json', *files])}")


def _made(name: str) -> Task:
    if name not in TASKS:
        raise LongspanError(f"no task is called {name!r}; `longspan eval --list` says which there are")
    if TASKS[name].data is not None:
        raise LongspanError(f"--task {name} reads a file of its own; take a made one such as passkey, or --file")
    return TASKS[name]


def _task_prompts(
    task: Task, tokenizer: Any, lengths: str | None, window: int, samples: int, seed: int
) -> Iterator[tuple[int, Prompt]]:
    for length in dict.fromkeys(parse_lengths(lengths or "2x,4x", window)):
        for n in range(samples):
            one = Prompt.of_task(task, tokenizer, length=length, seed=seed + n)
            _beyond(len(one.ids), window, length)
            yield length, one


def _file_prompts(
    text: str, question: str, answer: str | None, tokenizer: Any, lengths: str | None, window: int
) -> Iterator[tuple[int, Prompt]]:
    """The first tokens of a text and the question after them, one prompt a length."""
    body = start(tokenizer) + encode(tokenizer, text)
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
            raise LongspanError(f"the first {len(ids):,} tokens of the text do not have {answer!r} in them")
        yield length, Prompt(ids + asked, places)


def _beyond(tokens: int, window: int, length: int) -> None:
    if tokens <= window:
        raise LongspanError(
            f"a prompt of {tokens:,} tokens (length {length:,}) fits the window of {window:,}, inside which nothing is "
            "chosen; give greater --lengths"
        )


def _kind(report: Report) -> str:
    return str(getattr(report.method, "share", "head" if report.method.name == "lm-infinite" else "layer"))


def _draw(out: Path, tokenizer: Any, report: Report, named: str, length: int, one: Look, task: str | None) -> list[str]:
    """The picture and the page of a length's first prompt."""
    title = f"{report.method.name}: what each {_kind(report)} keeps of {len(one.ids):,} tokens"
    facts = {
        "model": named,
        "method": ", ".join([report.method.name, *(f"{key}={value}" for key, value in _parameters(report).items())]),
        "chunks": f"{len(one.chunks):,}",
        "cover": f"{one.cover:.0%}",
        "Gini": f"{one.gini:.2f}",
    }
    if one.answers:
        facts |= {"answer in chunks": ", ".join(map(str, one.answers)), "hits in the best 5": _percent(one.hit5)}
    if task is not None:
        facts |= {"task": task, "answered": one.prediction.strip() or "nothing"}
    draw_selection(
        one.choices, one.chunks, out / f"selection-{length}.png", answers=one.answers, title=title, kind=_kind(report)
    )
    texts = chunk_texts(tokenizer, one.ids, one.chunks)
    write_page(
        out / f"page-{length}.html", one.choices, one.chunks, texts, answers=one.answers, title=title, facts=facts,
        kind=_kind(report),
    )  # fmt: skip
    return [f"selection-{length}.png", f"page-{length}.html"]


def _positions(method: Method, lengths: str | None, window: int | None, out: Path, given: Sequence[Any]) -> None:
    """The pictures of a method that keeps keys by their index."""
    if any(one is not None for one in given):
        raise LongspanError(
            f"{method.name} keeps keys by their index and chooses none; leave --model, --task and --file out to draw "
            "its relative positions, or take longheads, esa, infllm, or lm-infinite with middle_top_k"
        )
    if window is None:
        raise LongspanError(f"--window: say the window in tokens that {method.name} is to be drawn for")
    try:
        resolved = method.resolve(window)
    except ValueError as error:
        raise LongspanError(str(error)) from error
    wanted = parse_lengths(lengths or "2x", window)
    out.mkdir(parents=True, exist_ok=True)
    for length in wanted:
        draw_positions(resolved, length, out / f"positions-{length}.png", title=f"{resolved.name}, {length:,} tokens")
    _say(f"in {out}: {', '.join(f'positions-{length}.png' for length in wanted)}")


def _table(rows: Sequence[Row], report: Report) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"{report.method.name}, window {report.window:,}: at the first token of the answer",
        title_justify="left",
        title_style="bold",
    )
    for name in ("tokens", "n", "chunks", "cover", "Gini", "hit@1", "hit@5", "found", "in one\nchunk", "split"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shares = (_percent(value) for value in (row.hit1, row.hit5))
        answers = (_found(value) for value in (row.found, row.whole, row.split))
        table.add_row(
            f"{row.tokens:,.0f}",
            str(row.n),
            f"{row.chunks:,.0f}",
            _percent(row.cover),
            f"{row.gini:.2f}",
            *shares,
            *answers,
        )
    return table


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _found(value: Found) -> str:
    low, high = value.interval
    return f"{value.found:g}/{value.n}\n{100 * low:.0f}-{high:.0%}" if value.n else "-"


def _write(
    path: Path,
    about: dict[str, Any],
    report: Report,
    rows: Sequence[Row],
    looks: dict[int, list[Look]],
    recall: RecallReport | None,
) -> None:
    def shares(found: Found) -> dict[str, Any]:
        return {"found": found.found, "n": found.n, "interval": list(found.interval) if found.n else None}

    lengths = []
    for row in rows:
        prompts = [
            {
                "seed": one.prompt.seed, "tokens": len(one.prompt.ids), "chunks": len(one.chunks),
                "answer_chunks": one.answers, "cover": one.cover, "gini": one.gini, "hit1": _number(one.hit1),
                "hit5": _number(one.hit5), "prediction": one.prediction, "score": _number(one.score),
            }
            for one in looks[row.length]
        ]  # fmt: skip
        figures = {key: _number(getattr(row, key)) for key in ("tokens", "chunks", "cover", "gini", "hit1", "hit5")}
        answers = {key: shares(getattr(row, key)) for key in ("found", "whole", "split")}
        lengths.append({"length": row.length, "n": row.n, **figures, **answers, "prompts": prompts})
    found = None if recall is None else {"title": recall.title(), "rows": [asdict(row) for row in recall.rows]}
    method = {"name": report.method.name, "parameters": _parameters(report), "chooses": _kind(report)}
    whole = {**about, "window": report.window, "method": method, "versions": versions()}
    body = json.dumps({**whole, "lengths": lengths, "recall": found}, indent=1, ensure_ascii=False)
    write(path, body + "\n")


def _parameters(report: Report) -> dict[str, Any]:
    """Those that have a value, as plain ones."""
    values = {key: value for key, value in report.method.parameters().items() if value is not None}
    return {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in values.items()}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _say(text: str) -> None:
    print(text, file=sys.stderr)
