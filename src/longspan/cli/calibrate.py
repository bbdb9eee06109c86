"""``longspan calibrate``: reduced scores for a model, as a file for ``extend(..., calibration=...)``."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console

from longspan import files
from longspan.cli.options import (
    BUNDLED,
    Json,
    Quiet,
    load_model,
    load_tokenizer,
    no_pictures,
    notes,
    one_stdin,
    print_json,
    read_text,
    say,
)
from longspan.errors import LongspanError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from longspan.calibration import Calibration
    from longspan.calibration.solvers import Solver

REPORT_TOKENS = 16_384


def calibrate(
    model: Annotated[str, typer.Argument(help="A model folder, a hub name, or 'bundled'.")],
    text: Annotated[
        list[Path], typer.Option(help="A text file of the kind the model will read; - is stdin; repeatable.")
    ],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    reduced: Annotated[
        int | None, typer.Option(help="Numbers kept of a layer's key; an eighth of its channels unless given.", min=1)
    ] = None,
    reduced_per_head: Annotated[
        int | None, typer.Option(help="The same for each key head; an eighth of its channels unless given.", min=1)
    ] = None,
    solver: Annotated[str, typer.Option(help="closed_form, sgd (the paper's) or pca.")] = "closed_form",
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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the short products that stand for a model's attention scores, and write them to a file.

    With --report, print the recall of the keys that score highest, by layer and solver, and draw it beside the file.
    """
    from longspan.calibration.solvers import SOLVERS, Solver

    if solver not in SOLVERS:
        hint = did_you_mean(solver, SOLVERS)
        raise LongspanError(f"--solver is one of {', '.join(SOLVERS)}, not {solver!r}{hint}")
    if out.is_dir() or not out.parent.is_dir() or out.suffix == ".png":
        raise LongspanError(f"--out {out}: name a .safetensors file in a folder that exists")
    files.check(out)  # better to hear now than after the calibration that it cannot be written
    one_stdin([*text, report_text])
    contents = [read_text(path) for path in text]
    other = None if report_text is None else read_text(report_text)
    loaded = load_model(model, window=window, dtype=dtype, device=device)
    from longspan.hf import calibrate_each, measure_recall

    tokenizer = load_tokenizer(model)
    console = notes(quiet)
    solvers: tuple[Solver, ...] = SOLVERS if report else tuple(one for one in get_args(Solver) if one == solver)
    try:
        unseen = None
        if report:
            unseen = _for_report(tokenizer, contents, tokens, other, report_tokens, loaded, window)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            made = calibrate_each(
                loaded, contents, solvers=solvers, tokenizer=tokenizer, reduced=reduced,
                reduced_per_head=reduced_per_head, tokens=tokens, window=window, progress=not quiet,
                model_id=BUNDLED if model == BUNDLED else None,
            )  # fmt: skip
        for note in warned:
            say(console, f"note: {note.message}")
        chosen = next(one for one in made.values() if one.solver == solver)
        chosen.save(out)
        say(console, _in_words(out, chosen))
        found = None
        if unseen is not None:
            found = measure_recall(
                loaded, list(made.values()), [unseen], top=report_top, window=window, progress=not quiet
            )
            if not as_json:
                Console(highlight=False).print(found)
            if not no_pictures(console):
                found.plot(out.with_suffix(".png"))
                say(console, f"plot: {out.with_suffix('.png')}")
        if as_json:
            recall = None if found is None else {**asdict(found), "title": found.title()}
            print_json({"file": str(out), **chosen.settings(), "recall": recall})
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
    import torch

    from longspan.hf import inspect
    from longspan.hf.collect import encode

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


def _in_words(out: Path, made: Calibration) -> str:
    return (
        f"{out}: {len(made.layers)} layers, {made.reduced} numbers a token and layer, {made.reduced_per_head} a head, "
        f"by {made.solver} from {made.tokens:,} tokens"
    )
