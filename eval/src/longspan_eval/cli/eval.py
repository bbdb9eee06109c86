"""``longspan eval``: tasks by methods by lengths, measured on a model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from longspan.cli.options import MODEL, Device, Dtype, Json, Quiet, Weights, Window, examples
from longspan.cli.output import notes, print_json, say, wide
from longspan.cli.texts import one_stdin
from longspan.errors import LongspanError
from longspan.loading.models import check_device, load_model, load_tokenizer, quiet_transformers
from longspan_eval.cli.eval_options import (
    MaxFullSeconds,
    RetryErrors,
    check_folder,
    check_spec,
    check_tier,
    kept_text,
    parse_lengths,
)
from longspan_eval.cli.results import check_measured, resumable, show_results
from longspan_eval.cli.tasks import listing, named, sheet
from longspan_eval.windows import PERPLEXITY, STRIDE, Mode, check_texts, find_windows

if TYPE_CHECKING:
    from rich.console import Console

    from longspan.memory import KVTier
    from longspan_eval.sample import Sample
    from longspan_eval.session import Session
    from longspan_eval.studies.eval import Evaluation
    from longspan_eval.studies.eval_report import EvalReport
    from longspan_eval.task import Task


@examples(
    "longspan eval --list",
    "longspan eval passkey --model bundled --lengths 1x,2x --samples 5 --dry-run",
    "longspan eval passkey --model bundled --lengths 1x,2x --samples 5",
)
def evaluate(
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="TASK...", help="Tasks; a pattern such as 'ruler-*' selects several.")
    ] = None,
    model: Annotated[str | None, typer.Option(help=MODEL)] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="The methods, such as yarn,longheads:score=bounds,num_chunks=8. The stock model is always added."
        ),
    ] = "dca",
    lengths: Annotated[
        str, typer.Option(help="Lengths of prompt and answer in tokens (4096, 4k) or windows (4x).")
    ] = "1x,2x,4x",
    samples: Annotated[
        int, typer.Option(help="The number of prompts per cell, or per depth with --depths.", min=1)
    ] = 50,
    depths: Annotated[
        int | None,
        typer.Option(help="The number of depths of the answer, evenly from the start of the text to its end.", min=1),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The folder of the files that tasks read.")] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--text", help="For perplexity: a text file, a folder of *.txt, or - for stdin; repeatable."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help=f"For perplexity: the tokens by which a window moves; default: {STRIDE}.", min=1)
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="For perplexity: score the new tokens of a window (new, the default) or all of them (whole)."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the run; the same command continues it.")] = Path(
        "longspan-eval"
    ),
    max_full_seconds: MaxFullSeconds = None,
    n_workers: Annotated[
        int | None,
        typer.Option("--workers", help="The number of processes, each with its own model; default: 1.", min=1),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads per process; default: an equal share of torch's number.", min=1)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: its address, auto, or local, which starts one."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the first prompt.", min=0)] = 0,
    window: Window = None,
    dtype: Dtype = "auto",
    weights: Weights = "auto",
    device: Device = "auto",
    kv_tier: Annotated[
        str, typer.Option(help="The storage of the cache of extended models: device, host, disk or auto.")
    ] = "device",
    retry_errors: RetryErrors = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what remains to be measured and about how long it takes.")
    ] = False,
    list_tasks: Annotated[bool, typer.Option("--list", help="List the tasks.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure tasks by method and length: scores with 95% intervals, tables and heat maps.

    Each sample is saved at once: the same command continues a run that was stopped or killed.
    """
    if list_tasks:
        found = listing()
        print_json(found) if as_json else wide().print(sheet(found))
        return
    chosen = named(tasks or [])
    if model is None:
        raise LongspanError("--model is missing: name a model folder, a hub name, or 'bundled'")
    _refuse_idle_options(chosen, {"--text": texts, "--stride": stride, "--mode": mode}, data_dir)
    if ray is not None:
        _refuse_beside_ray(n_workers, dry_run)
    one_stdin(texts or ())
    from longspan_eval.spec import parse_specs, split_specs

    specs = parse_specs(split_specs(methods))
    import torch

    from longspan_eval import ray_workers
    from longspan_eval.cli.dry_run import estimate, known_subject
    from longspan_eval.measure import Keys
    from longspan_eval.schedule import CellPlan
    from longspan_eval.studies.eval import Evaluation, read_data
    from longspan_eval.studies.eval_report import EvalReport
    from longspan_eval.subject import Subject

    place, tier = check_device(device), check_tier(kv_tier)
    if ray is not None:
        ray_workers.require()
    quiet_transformers()
    console = notes(quiet)
    check_folder(out)
    # Errors in a file are raised at once: a large model takes minutes to load.
    data = read_data(chosen, data_dir)
    texts = None if texts is None else [kept_text(path, out, dry_run) for path in texts]
    if texts:
        check_texts(texts)
    # Here on the CPU, to be hashed and checked; the processes that read prompts load it where it is to run.
    loaded = load_model(model, window=window, dtype=dtype, weights=weights, device="cpu", quiet=quiet, bare=dry_run)
    tokenizer = load_tokenizer(model, loaded)
    subject_of = partial(known_subject, out) if dry_run else Subject.of
    subject = subject_of(loaded, tokenizer, window=window)
    sizes = parse_lengths(lengths, subject.window)
    windows = None
    if PERPLEXITY in chosen:
        windows = find_windows(
            tokenizer, texts or [], longest=max(sizes), stride=stride or STRIDE, mode=mode or get_args(Mode)[0]
        )
    study = Evaluation(
        tasks=chosen,
        specs=tuple(specs),
        lengths=sizes,
        samples=samples,
        depths=depths,
        seed=seed,
        data_dir=data_dir,
        data=data,
        max_full_seconds=max_full_seconds,
        windows=windows,
    )
    keys = Keys(subject, place.type)
    plan = CellPlan(study.cells(), keys, max_full_seconds=max_full_seconds)
    study.check(tokenizer)
    for spec in study.specs:
        check_spec(spec, None if dry_run else loaded, subject, study.lengths, window, tier)
    if windows is not None:
        say(console, f"{PERPLEXITY.name}: {windows}")
    at_once = n_workers or 1
    count = threads or (1 if ray is not None else max(torch.get_num_threads() // at_once, 1))
    command = _command(study, model, lengths, methods, texts, window, dtype, weights, kv_tier)
    report = EvalReport(out, study, keys, plan, command, str(place), count, tier)
    if dry_run:
        left = estimate(report, at_once, retry_errors)
        print_json(left.to_dict()) if as_json else wide().print(left)
        return
    del loaded
    load = partial(_load, model, window, dtype, weights, device, tier)
    watched = console.is_terminal and not quiet
    pictures, measured = _measure(report, load, n_workers, ray, retry_errors, as_json, watched, console)
    names = ["results.json", "summary.md", "samples.jsonl", *(picture.name for picture in pictures)]
    say(console, f"in {out}: {', '.join(names)}")
    check_measured([plan], measured)


def _refuse_idle_options(chosen: Sequence[Task], of_perplexity: dict[str, object], data_dir: Path | None) -> None:
    if PERPLEXITY not in chosen and (idle := [name for name, value in of_perplexity.items() if value is not None]):
        raise LongspanError(f"{', '.join(idle)}: only {PERPLEXITY.name} reads a text; it is not among the tasks")
    if data_dir is not None and all(task.data is None for task in chosen):
        raise LongspanError(
            f"--data-dir: no task among {', '.join(task.name for task in chosen)} reads a data file; leave it out. "
            "`longspan eval --list` says which do"
        )


def _refuse_beside_ray(n_workers: int | None, dry_run: bool) -> None:
    if n_workers is not None:
        raise LongspanError(
            "--workers is for processes on this machine; a Ray cluster starts as many as fit: leave it out"
        )
    if dry_run:
        raise LongspanError("--dry-run tells the time of processes on this machine, not of a cluster: leave --ray out")


def _measure(
    report: EvalReport,
    load: Callable[[], Session],
    n_workers: int | None,
    ray: str | None,
    retry_errors: bool,
    as_json: bool,
    watched: bool,
    console: Console,
) -> tuple[list[Path], Mapping[str, Sample]]:
    """Measure what is left, save each sample at once, and print the table; the pictures' paths and all samples."""
    from longspan_eval import ray_workers, workers
    from longspan_eval.journal import Journal
    from longspan_eval.run import PromptWatch, measure

    out, plan, at_once = report.out, report.plan, n_workers or 1
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(out / "samples.jsonl"))
        rank = report.study.rank(longest_first=ray is not None)
        parts = plan.left(journal.samples, retry_errors=retry_errors, rank=rank)

        def write() -> None:
            report.write(journal.samples)

        write()  # better to hear now than after the measurement that nothing can be written there
        say(console, f"{sum(map(len, parts)):,} prompts to ask")
        watch = PromptWatch() if watched else None
        answers = partial(workers.run, load=load, workers=at_once, threads=report.threads, seen=watch)
        if ray is not None and parts:
            gpus = 1 if report.device.startswith("cuda") else 0
            cluster = stack.enter_context(ray_workers.Cluster(ray, threads=report.threads, gpus=gpus))
            at_once, answers = cluster.room, partial(cluster.run, load=load)
        with resumable(out, journal, write, console):
            measure(
                plan,
                parts,
                journal,
                plan.pace(report.keys.subject, journal.samples),
                answers,
                at_once=at_once,
                console=console,
                finished=write,
                watch=watch,
            )
        show_results(out, as_json)
        return report.draw(journal.samples), journal.samples


def _load(name: str, window: int | None, dtype: str, weights: str, device: str, kv_tier: KVTier) -> Session:
    """The model where it is to run, and its tokenizer."""
    from longspan_eval.session import Session

    model = load_model(name, window=window, dtype=dtype, weights=weights, device=device)
    return Session(model, load_tokenizer(name, model), window=window, kv_tier=kv_tier)


def _command(
    study: Evaluation,
    model: str,
    lengths: str,
    methods: str,
    texts: Sequence[Path] | None,
    window: int | None,
    dtype: str,
    weights: str,
    kv_tier: str,
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
    words += [] if weights == "auto" else ["--weights", weights]
    words += [] if kv_tier == "device" else ["--kv-tier", kv_tier]
    return shlex.join(words)
