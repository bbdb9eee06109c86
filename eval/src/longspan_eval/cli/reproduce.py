"""``longspan reproduce``: a paper's tables, measured on a model."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.bundled import FOLDER
from longspan.cli.options import MODEL, Device, Dtype, Json, Quiet, Weights, Window, examples
from longspan.cli.output import notes, print_json, say, wide
from longspan.errors import LongspanError, did_you_mean
from longspan.loading.models import load_model, load_tokenizer, quiet_transformers
from longspan.loading.names import BUNDLED
from longspan.terminal import Column, Sheet
from longspan_eval.cli.eval_options import MaxFullSeconds, RetryErrors, check_folder
from longspan_eval.cli.results import check_measured, resumable, show_results

if TYPE_CHECKING:
    from rich.console import Console

    from longspan_eval.reproduce.report import PaperReport
    from longspan_eval.reproduce.session import PaperSession
    from longspan_eval.reproduce.table import Paper
    from longspan_eval.run import Answers, PromptWatch
    from longspan_eval.sample import Sample

SCALES = ("auto", "paper", "quick")
SCALES_TO = ("auto", "paper", "window")


@examples(
    "longspan reproduce --list",
    "longspan reproduce esa --model bundled --tables eq-9 --max-length 1",
)
def reproduce(
    paper: Annotated[str | None, typer.Argument(help="The paper: longheads, dca or esa.")] = None,
    model: Annotated[str | None, typer.Option(help=MODEL)] = None,
    tables: Annotated[str | None, typer.Option(help="Tables, separated by commas; default: all.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The folder of the files that tables read.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the run; the same command continues it.  [default: reproduce/PAPER]"),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="The numbers of prompts: paper, the paper's; quick, a few; auto, quick for 'bundled', else paper."
        ),
    ] = "auto",
    scale_to: Annotated[
        str,
        typer.Option(
            help="The numbers of tokens: paper, as printed; window, scaled to the model's window; auto, as printed if "
            "the paper's models have this window."
        ),
    ] = "auto",
    samples: Annotated[
        int | None, typer.Option(help="The largest number of prompts, or of windows of a text, per cell.", min=1)
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="The largest length of a cell in tokens; longer cells are left out.", min=1)
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="The time in minutes after which no new prompt begins.")
    ] = None,
    max_full_seconds: MaxFullSeconds = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A file of reduced scores for esa; 'bundled' has a default file.")
    ] = None,
    window: Window = None,
    dtype: Dtype = "auto",
    weights: Weights = "auto",
    device: Device = "auto",
    retry_errors: RetryErrors = False,
    list_tables: Annotated[bool, typer.Option("--list", help="List the tables.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the tables of a paper on a model, with the paper's parameters scaled to its window, beside its figures.

    Each sample is saved at once: the same command continues a run that was stopped or killed.
    """
    from longspan_eval.reproduce import PAPERS

    if list_tables:
        found = _listing(PAPERS.values())
        print_json(found) if as_json else wide().print(_sheet(found))
        return
    chosen = _paper(paper)
    if model is None:
        raise LongspanError("--model is missing: name a model folder, a hub name, or 'bundled'")
    _check_values(scale, scale_to, {"--max-minutes": max_minutes, "--max-full-seconds": max_full_seconds})
    from longspan.calibration import Calibration
    from longspan.hf.calibration.calibrate import check_calibration
    from longspan_eval.reproduce.report import PaperReport
    from longspan_eval.reproduce.session import PaperSession
    from longspan_eval.reproduce.table import PaperPlan, check_data, select
    from longspan_eval.run import PromptWatch, in_process
    from longspan_eval.subject import Subject

    if calibration is not None and not chosen.calibrated:
        raise LongspanError(f"--calibration: no table of {chosen.name} uses reduced keys; leave it out, or name esa")
    wanted = select(chosen, None if tables is None else [name.strip() for name in tables.split(",")])
    begun = time.monotonic()
    quiet_transformers()
    given = calibration
    if calibration is None and model == BUNDLED:
        calibration = FOLDER / "calibration.safetensors"
    if calibration is not None:
        Calibration.load(calibration)  # what is wrong with it is better heard now than after hours
    folder = Path("reproduce") / chosen.name if out is None else out
    check_folder(folder)
    check_data(wanted, data_dir)
    loaded = load_model(model, window=window, dtype=dtype, weights=weights, device=device, quiet=quiet)
    tokenizer = load_tokenizer(model, loaded)
    if given is not None:  # in the rows that take it, one of another model would be an error, hours later
        check_calibration(loaded, Calibration.load(given))
    if scale == "auto":
        scale = "quick" if model == BUNDLED else "paper"
    session = PaperSession(
        loaded,
        tokenizer,
        Subject.of(loaded, tokenizer, window=window),
        scale=scale,  # type: ignore[arg-type]
        samples=samples,
        max_length=max_length,
        data_dir=data_dir,
        calibration=calibration,
        window=window,
        windows=chosen.windows,
        scale_to=scale_to,  # type: ignore[arg-type]
    )
    plans = [PaperPlan(table, session, max_full_seconds=max_full_seconds) for table in wanted]
    command = _command(session, chosen.name, model, tables, given, dtype, weights, max_full_seconds)
    report = PaperReport(folder, chosen, session, plans, command, str(session.device))
    console = notes(quiet)
    deadline = None if max_minutes is None else begun + 60 * max_minutes
    watch = PromptWatch() if console.is_terminal and not quiet else None
    answers = partial(in_process, session=session, deadline=deadline, seen=watch)
    pictures, measured = _measure(report, answers, retry_errors, watch, console)
    show_results(folder, as_json)
    names = ", ".join(["results.json", "summary.md", "samples.jsonl", *pictures])
    say(console, f"in {folder}: {names}")
    if any(plan.missing(measured) for plan in plans):
        say(console, "the time is over; the same command goes on")
    check_measured(plans, measured)


def _paper(name: str | None) -> Paper:
    from longspan_eval.reproduce import PAPERS

    if name in PAPERS:
        return PAPERS[name]
    known = ", ".join(PAPERS)
    raise LongspanError(
        f"unknown paper {name!r}; there are {known}{did_you_mean(name, PAPERS)}" if name else f"name a paper: {known}"
    )


def _check_values(scale: str, scale_to: str, limits: dict[str, float | None]) -> None:
    if scale not in SCALES:
        raise LongspanError(f"--scale must be auto, paper or quick, not {scale!r}{did_you_mean(scale, SCALES)}")
    if scale_to not in SCALES_TO:
        raise LongspanError(
            f"--scale-to must be auto, paper or window, not {scale_to!r}{did_you_mean(scale_to, SCALES_TO)}"
        )
    for name, limit in limits.items():
        if limit is not None and not limit > 0:
            raise LongspanError(f"{name} must be above 0, not {limit:g}")


def _measure(
    report: PaperReport, answers: Answers, retry_errors: bool, watch: PromptWatch | None, console: Console
) -> tuple[list[str], Mapping[str, Sample]]:
    """Measure what is left and save each sample at once; the pictures' names and all samples."""
    from longspan_eval.journal import Journal
    from longspan_eval.run import measure

    report.out.mkdir(parents=True, exist_ok=True)
    with Journal(report.out / "samples.jsonl") as journal:

        def write() -> None:
            report.write(journal.samples)

        write()  # better to hear now than after the measurement that nothing can be written there
        with resumable(report.out, journal, write, console):
            for plan in report.plans:
                parts = plan.missing(journal.samples, retry_errors=retry_errors)
                n = sum(map(len, parts))
                say(console, f"{plan.table.name}: {f'{n:,} to measure' if n else 'nothing left to measure'}")
                pace = plan.pace(report.session.subject, journal.samples)
                measure(plan, parts, journal, pace, answers, console=console, finished=write, watch=watch)
        return report.draw(journal.samples), journal.samples


def _command(
    session: PaperSession,
    paper: str,
    model: str,
    tables: str | None,
    calibration: Path | None,
    dtype: str,
    weights: str,
    max_full_seconds: float | None,
) -> str:
    """The command that makes these tables, without what does not change them; ``calibration`` is the one given."""
    words = ["longspan", "reproduce", paper, "--model", model, "--scale", session.scale]
    given: dict[str, object] = {
        "--tables": tables,
        "--scale-to": None if session.scale_to == "auto" else session.scale_to,
    }
    given |= {"--samples": session.samples, "--max-length": session.max_length, "--data-dir": session.data_dir}
    given |= {"--calibration": calibration, "--window": session.window, "--dtype": None if dtype == "auto" else dtype}
    given |= {"--weights": None if weights == "auto" else weights}
    given |= {"--max-full-seconds": None if max_full_seconds is None else f"{max_full_seconds:g}"}
    for name, value in given.items():
        words += [] if value is None else [name, str(value)]
    return shlex.join(words)


def _listing(papers: Iterable[Paper]) -> list[dict[str, str]]:
    """Every table that can be made again, for ``--list --json``."""
    return [
        {"paper": paper.name, "table": one.name, "what": one.title, "where": " and ".join(one.numbers)}
        for paper in papers
        for one in paper.tables
    ]


def _sheet(found: list[dict[str, str]]) -> Sheet:
    # A table's name comes first: it names a row if columns do not fit.
    columns = [Column("table", style="cyan"), Column("paper", style="bold"), Column("what it shows"), Column("there")]
    return Sheet(columns, [(one["table"], one["paper"], one["what"], one["where"]) for one in found])
