"""``longspan eval``: tasks by methods by lengths, measured on a model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer
from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from longspan.cli.options import check_device, load_model, load_tokenizer, quiet, wide
from longspan.errors import AttachError, LongspanError
from longspan.evaluation import ray_workers, workers
from longspan.evaluation.journal import Journal
from longspan.evaluation.measure import measure, outcomes
from longspan.evaluation.pages import Pages
from longspan.evaluation.rows import Row, parse_rows, split_rows
from longspan.evaluation.study import Study, pace_of
from longspan.evaluation.subject import Subject
from longspan.evaluation.task import Task
from longspan.evaluation.tasks import TASKS
from longspan.evaluation.windows import PERPLEXITY, STRIDE, Mode, find_windows
from longspan.hf import restore
from longspan.signals import Stopped

KNOWN = {**TASKS, PERPLEXITY.name: PERPLEXITY}  # a pattern such as * takes none but the first


def evaluate(
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="TASK...", help="Tasks; a pattern such as 'ruler-*' takes several.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model folder, a hub name, or 'bundled'.")] = None,
    methods: Annotated[
        str,
        typer.Option(help="Rows, such as stock,yarn,longheads:score=bounds,num_chunks=8. Stock is always among them."),
    ] = "dca",
    lengths: Annotated[
        str, typer.Option(help="Tokens of prompt and answer: 4096 or 4k; 4x is four windows.")
    ] = "1x,2x,4x",
    samples: Annotated[int, typer.Option(help="Prompts a cell; with --depths, at each depth.", min=1)] = 50,
    depths: Annotated[
        int | None, typer.Option(help="Ask at so many depths, evenly from the start of the text to its end.", min=1)
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The folder with the files that tasks read.")] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--text", help="For perplexity: a text file, or a folder of *.txt; repeatable."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help=f"For perplexity: tokens by which a window moves (default {STRIDE}).", min=1)
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="For perplexity: score the tokens new to a window (new, the default) or all of it (whole)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run; the same command takes it up again.")] = Path(
        "longspan-eval"
    ),
    max_full_seconds: Annotated[
        float | None, typer.Option(help="Mark cells of full attention whose prompts take longer, unmeasured.")
    ] = None,
    n_workers: Annotated[int, typer.Option("--workers", help="Processes, each with a model of its own.", min=1)] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Of each process; else torch's own number, shared out.", min=1)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="[ADDRESS]", help="Spread over a Ray cluster, or over one that is started here."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The first prompt's.")] = 0,
    window: Annotated[int | None, typer.Option(help="The trained window in tokens; else the config's.", min=1)] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    retry_errors: Annotated[bool, typer.Option(help="Ask again what ended in an error.")] = False,
    list_tasks: Annotated[bool, typer.Option("--list", help="Say which tasks there are.")] = False,
) -> None:
    """Measure tasks by method and length: scores with 95% intervals, tables and heat maps.

    Every sample is on disk as soon as it is there: a run that was stopped or killed goes on where it was.
    """
    if list_tasks:
        wide().print(_listing())
        return
    chosen = _tasks(tasks or [])
    if model is None:
        raise LongspanError("say with --model which model to measure: a folder, a hub name, or 'bundled'")
    asked = {"--text": texts, "--stride": stride, "--mode": mode}
    if PERPLEXITY not in chosen and (idle := [name for name, value in asked.items() if value is not None]):
        raise LongspanError(f"{', '.join(idle)}: only {PERPLEXITY.name} reads a text; it is not among the tasks")
    rows = parse_rows(split_rows(methods))
    place = check_device(device)
    if ray is not None:
        ray_workers.require()
    quiet()
    console = Console(stderr=True)
    # Here on the CPU, to be hashed and checked; what reads prompts are processes that load it where it is to run.
    loaded, tokenizer = load_model(model, window=window, dtype=dtype, device="cpu"), load_tokenizer(model)
    subject = Subject.of(loaded, tokenizer, window=window)
    sizes = parse_lengths(lengths, subject.window)
    windows = None
    if PERPLEXITY in chosen:
        windows = find_windows(
            tokenizer, texts or [], longest=max(sizes), stride=stride or STRIDE, mode=mode or get_args(Mode)[0]
        )
    study = Study(
        tasks=chosen,
        rows=tuple(rows),
        lengths=sizes,
        samples=samples,
        depths=depths,
        seed=seed,
        data_dir=data_dir,
        max_full_seconds=max_full_seconds,
        windows=windows,
    )
    cells = study.plan(subject, place.type, window)
    study.check(tokenizer)
    for row in study.rows:
        _check_row(row, loaded, subject, study.lengths, window)
    del loaded
    if windows is not None:
        console.print(f"{PERPLEXITY.name}: {windows}", markup=False, highlight=False, soft_wrap=True)
    count = threads or (1 if ray is not None else max(torch.get_num_threads() // n_workers, 1))
    load = partial(_load, model, window, dtype, device)
    pages = Pages(
        out, study, subject, cells, _command(study, model, lengths, methods, texts, window, dtype), str(place), count
    )
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(out / "samples.jsonl"))
        parts = study.left(cells, journal.samples, retry_errors=retry_errors, longest_first=ray is not None)
        pace = pace_of(subject, cells, journal.samples)

        def write() -> None:
            pages.write(outcomes(study, cells, journal.samples))

        write()  # better to hear now than after the measurement that nothing can be written there
        at_once, answers = n_workers, partial(workers.run, load=load, workers=n_workers, threads=count)
        if ray is not None and parts:
            cluster = stack.enter_context(
                ray_workers.Cluster(ray, threads=count, gpus=1 if place.type == "cuda" else 0)
            )
            at_once, answers = cluster.room, partial(cluster.run, load=load, cost=pace.guess)
        stopped: int | None = None
        try:
            measure(study, cells, parts, journal, pace, answers, at_once=at_once, console=console, finished=write)
        except KeyboardInterrupt:
            stopped = 130
        except Stopped as signal:
            stopped = signal.code
        write()
        _show(pages, outcomes(study, cells, journal.samples), console)
    if stopped is not None:
        console.print("stopped; the same command goes on from here")
        raise typer.Exit(stopped)


def parse_lengths(text: str, window: int) -> tuple[int, ...]:
    """Lengths in tokens of ``4096``, ``4k`` (4 x 1024) or ``4x`` (windows), set apart by commas."""
    lengths = []
    for piece in (piece.strip().lower() for piece in text.split(",")):
        unit = 1024 if piece.endswith("k") else window if piece.endswith("x") else 1
        try:
            value = float(piece[:-1] if unit != 1 or piece.endswith(("k", "x")) else piece)
            length = round(value * unit)
        except (ValueError, OverflowError):
            length = 0
        if not 0 < length <= 2**31:
            raise LongspanError(f"--lengths takes tokens such as 4096 or 4k, or windows such as 4x, not {piece!r}")
        lengths.append(length)
    return tuple(lengths)


def with_address(args: Sequence[str]) -> list[str]:
    """The arguments with an empty address after a bare ``--ray``: Ray then finds its cluster, or starts one."""
    made = list(args)
    for n, arg in enumerate(made):
        following = made[n + 1] if n + 1 < len(made) else ""
        if arg == "--ray" and not (following in ("auto", "local") or ":" in following):
            made[n] = "--ray="
    return made


def _tasks(names: Sequence[str]) -> tuple[Task, ...]:
    if not names:
        raise LongspanError("name at least one task; `longspan eval --list` says which there are")
    found: list[Task] = []
    for name in names:
        fitting = [KNOWN[name]] if name in KNOWN else [task for key, task in TASKS.items() if fnmatchcase(key, name)]
        if not fitting:
            raise LongspanError(f"no task is called {name!r}; `longspan eval --list` says which there are")
        found += fitting
    return tuple(found)


def _check_row(row: Row, model: Any, subject: Subject, lengths: Sequence[int], window: int | None) -> None:
    """Raise where a row cannot be at any length; a length that it alone cannot reach is an error in its cell."""
    parameters = [row.parameters(subject.window, length) for length in lengths]
    good = [length for length, shown in zip(lengths, parameters, strict=True) if "error" not in shown]
    if not good:
        raise LongspanError(f"{row.label}: {parameters[0]['error']}")
    try:
        row.attach(model, good[0], window)
    except AttachError:
        raise
    except ValueError as error:
        raise LongspanError(f"{row.label}: {error}") from error
    finally:
        restore(model)


def _load(name: str, window: int | None, dtype: str, device: str) -> tuple[Any, Any]:
    """The model where it is to run, and its tokenizer."""
    return load_model(name, window=window, dtype=dtype, device=device), load_tokenizer(name)


def _command(
    study: Study,
    model: str,
    lengths: str,
    methods: str,
    texts: Sequence[Path] | None,
    window: int | None,
    dtype: str,
) -> str:
    """The command that makes this table, without what does not change it."""
    words = ["longspan", "eval", *(task.name for task in study.tasks), "--model", model]
    words += ["--methods", methods, "--lengths", lengths, "--samples", str(study.samples)]
    words += [] if study.depths is None else ["--depths", str(study.depths)]
    words += [] if study.data_dir is None else ["--data-dir", str(study.data_dir)]
    words += [word for text in texts or () for word in ("--text", str(text))]
    if study.windows is not None:
        words += [] if study.windows.stride == STRIDE else ["--stride", str(study.windows.stride)]
        words += [] if study.windows.mode == get_args(Mode)[0] else ["--mode", study.windows.mode]
    words += [] if study.max_full_seconds is None else ["--max-full-seconds", f"{study.max_full_seconds:g}"]
    words += [] if study.seed == 0 else ["--seed", str(study.seed)]
    words += [] if window is None else ["--window", str(window)]
    words += [] if dtype == "auto" else ["--dtype", dtype]
    return shlex.join(words)


def _listing() -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1))
    table.add_column("task", style="cyan", no_wrap=True)
    table.add_column("what it asks", ratio=4)
    table.add_column("answer", justify="right")
    table.add_column("data", ratio=2, overflow="fold")
    table.add_column("paper", style="dim", ratio=2, overflow="fold")
    for task in KNOWN.values():
        data = "any text (--text)" if task is PERPLEXITY else "made" if task.data is None else task.data.name
        what = task.summary + (" (depths)" if task.at_depths else "")
        table.add_row(task.name, what, f"{task.new_tokens or '-'}", data, task.paper)
    return table


def _show(pages: Pages, grid: Any, console: Console) -> None:
    """The table on stdout, and on stderr where everything is."""
    text, page = (pages.out / "summary.md").read_text(encoding="utf-8"), Console(highlight=False)
    if page.is_terminal:
        page.print(Markdown(text))
    else:
        print(text, end="")
    pictures: list[Path] = []
    if find_spec("matplotlib") is None:
        console.print("no pictures: matplotlib is missing (pip install 'longspan[plot]')", markup=False)
    else:
        pictures = pages.draw(grid)
    names = ["results.json", "summary.md", "samples.jsonl", *(picture.name for picture in pictures)]
    console.print(f"in {pages.out}: {', '.join(names)}", highlight=False, markup=False, soft_wrap=True)
