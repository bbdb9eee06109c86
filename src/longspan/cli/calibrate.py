"""``longspan calibrate``: reduced scores for a model, as a file for ``extend(..., calibration=...)``."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from longspan import files
from longspan.calibration import Calibration, RecallReport
from longspan.calibration.solvers import SOLVERS, Solver
from longspan.cli.options import BUNDLED, load_model, load_tokenizer, read_text
from longspan.errors import LongspanError
from longspan.hf import calibrate_each, inspect, measure_recall
from longspan.hf.collect import encode

REPORT_TOKENS = 16_384


def calibrate(
    model: Annotated[str, typer.Argument(help="A model folder, a hub name, or 'bundled'.")],
    text: Annotated[list[Path], typer.Option(help="A text file, of the kind the model will read; repeatable.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    reduced: Annotated[
        int | None, typer.Option(help="Numbers kept of a layer's key; an eighth of its channels unless given.", min=1)
    ] = None,
    reduced_per_head: Annotated[
        int | None, typer.Option(help="The same for each key head; an eighth of its channels unless given.", min=1)
    ] = None,
    solver: Annotated[str, typer.Option(help=f"One of {', '.join(SOLVERS)}.")] = "closed_form",
    tokens: Annotated[int, typer.Option(help="Tokens to read, of the texts in their order.", min=1)] = 50_000,
    window: Annotated[int | None, typer.Option(help="The trained window in tokens; else the config's.", min=1)] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16: the type it will run in.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    report: Annotated[
        bool, typer.Option("--report", help="Measure, for all solvers, how many of the top keys are found.")
    ] = False,
    report_text: Annotated[
        Path | None, typer.Option(help="The text to measure on; what --tokens leaves of --text unless given.")
    ] = None,
    report_tokens: Annotated[int, typer.Option(help="How much of it to read.", min=1)] = REPORT_TOKENS,
    report_top: Annotated[int | None, typer.Option(help="How many keys; a quarter of the window.", min=1)] = None,
) -> None:
    """Find the short products that stand for a model's attention scores, and write them to a file.

    With --report, print the recall of the keys that score highest, by layer and solver, and draw it beside the file.
    """
    if solver not in SOLVERS:
        raise LongspanError(f"--solver is one of {', '.join(SOLVERS)}, not {solver!r}")
    if out.is_dir() or not out.parent.is_dir() or out.suffix == ".png":
        raise LongspanError(f"--out {out}: name a .safetensors file in a folder that exists")
    files.check(out)  # better to hear now than after the calibration that it cannot be written
    contents = [read_text(path) for path in text]
    other = None if report_text is None else read_text(report_text)
    loaded = load_model(model, window=window, dtype=dtype, device=device)
    tokenizer = load_tokenizer(model)
    solvers: tuple[Solver, ...] = SOLVERS if report else tuple(one for one in get_args(Solver) if one == solver)
    try:
        unseen = None
        if report:
            unseen = _for_report(tokenizer, contents, tokens, other, report_tokens, loaded, window)
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            made = calibrate_each(
                loaded, contents, solvers=solvers, tokenizer=tokenizer, reduced=reduced,
                reduced_per_head=reduced_per_head, tokens=tokens, window=window,
                model_id=BUNDLED if model == BUNDLED else None,
            )  # fmt: skip
        for note in notes:
            print(f"note: {note.message}", file=sys.stderr)
        chosen = next(one for one in made.values() if one.solver == solver)
        chosen.save(out)
        _say(out, chosen)
        if unseen is not None:
            found = measure_recall(loaded, list(made.values()), [unseen], top=report_top, window=window)
            Console().print(found)
            _plot(found, out.with_suffix(".png"))
    except LongspanError:
        raise
    except ValueError as error:
        raise LongspanError(str(error)) from error


def _for_report(
    tokenizer: Any,
    contents: list[str],
    tokens: int,
    other: str | None,
    wanted: int,
    model: PreTrainedModel,
    window: int | None,
) -> Tensor:
    """The tokens to measure on, ``[N]``: of another text, or those of ``contents`` that calibration does not reach."""
    if other is not None:
        return encode(tokenizer, other)[:wanted]
    size = inspect(model, "full", window=window).window
    ids = torch.cat([encode(tokenizer, text) for text in contents])
    unseen = ids[tokens:][:wanted]  # each piece's own first token is counted too, so this is never too early
    if unseen.numel() < min(wanted, 2 * size):
        raise LongspanError(
            f"the texts have {ids.numel():,} tokens, and after {tokens:,} for calibration {unseen.numel():,} are left "
            "to measure on; give more --text, fewer --tokens, or --report-text"
        )
    return unseen


def _plot(found: RecallReport, path: Path) -> None:
    if find_spec("matplotlib") is None:
        print("note: no plot, matplotlib is missing (pip install 'longspan[plot]')", file=sys.stderr)
        return
    found.plot(path)
    print(f"plot: {path}", file=sys.stderr)


def _say(out: Path, made: Calibration) -> None:
    print(
        f"{out}: {len(made.layers)} layers, {made.reduced} numbers a token and layer, {made.reduced_per_head} a head, "
        f"by {made.solver} from {made.tokens:,} tokens",
        file=sys.stderr,
    )
