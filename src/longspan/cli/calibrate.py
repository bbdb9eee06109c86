"""``longspan calibrate``: compute reduced scores for a model and write a file for ``extend(..., calibration=...)``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from longspan import files
from longspan.cli import options
from longspan.cli.output import no_pictures, notes, print_json, refusals, say, warnings_said
from longspan.cli.texts import one_stdin, read_text
from longspan.errors import LongspanError, did_you_mean
from longspan.loading.models import load_model, load_tokenizer
from longspan.loading.names import BUNDLED

if TYPE_CHECKING:
    from torch import Tensor

    from longspan.calibration import Calibration

REPORT_TOKENS = 16_384


@options.examples(
    "longspan methods | longspan calibrate bundled --text - --tokens 600 --out esa.safetensors",
    "longspan inspect bundled --method esa --calibration esa.safetensors",
)
def calibrate(
    context: typer.Context,
    model: options.ModelArgument,
    text: Annotated[
        list[Path], typer.Option(help="A text file that resembles the model's later input; - is stdin; repeatable.")
    ],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    reduced: Annotated[
        int | None, typer.Option(help="Channels of a layer's reduced key; default: an eighth of its channels.", min=1)
    ] = None,
    reduced_per_head: Annotated[
        int | None, typer.Option(help="Channels of a head's reduced key; default: an eighth of its channels.", min=1)
    ] = None,
    solver: Annotated[str, typer.Option(help="The solver: closed_form, sgd (as in the paper) or pca.")] = "closed_form",
    tokens: Annotated[int, typer.Option(help="The tokens to read, from the texts in their order.", min=1)] = 50_000,
    window: options.Window = None,
    dtype: options.Dtype = "auto",
    weights: options.Weights = "auto",
    device: options.Device = "auto",
    report: Annotated[
        bool, typer.Option("--report", help="Measure the recall of the keys with the highest scores, for all solvers.")
    ] = False,
    report_text: Annotated[
        Path | None, typer.Option(help="A text file for the report; default: the rest of --text after --tokens.")
    ] = None,
    report_tokens: Annotated[int, typer.Option(help="The number of tokens for the report.", min=1)] = REPORT_TOKENS,
    report_top: Annotated[
        int | None, typer.Option(help="The number of top keys; default: a quarter of the window, in tokens.", min=1)
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute maps that reduce a model's attention scores to short products, and write them to a file.

    With --report, print the recall of the keys with the highest scores, by layer and solver, and plot it beside the
    file.
    """
    from longspan.calibration.solvers import SOLVERS

    if solver not in SOLVERS:
        hint = did_you_mean(solver, SOLVERS)
        raise LongspanError(f"--solver must be one of {', '.join(SOLVERS)}, not {solver!r}{hint}")
    if out.is_dir() or not out.parent.is_dir() or out.suffix == ".png":
        raise LongspanError(f"--out {out}: pass a .safetensors file in an existing folder")
    files.check(out)  # fail before the calibration, not after it
    if not report and (given := options.given(context, ("report_text", "report_tokens", "report_top"))):
        raise LongspanError(f"{given}: valid only with --report")
    one_stdin([*text, report_text])
    contents = [read_text(path) for path in text]
    report_content = None if report_text is None else read_text(report_text)
    loaded = load_model(model, window=window, dtype=dtype, weights=weights, device=device, quiet=quiet)
    from longspan.hf import calibrate_each, inspect, measure_recall
    from longspan.hf.calibration.calibrate import recall_span

    tokenizer = load_tokenizer(model, loaded)
    console = notes(quiet)
    with refusals():
        report_ids = None
        if report:
            trained = inspect(loaded, "full", window=window).window
            report_ids = _report_ids(tokenizer, contents, tokens, report_content, report_tokens, trained)
            recall_span(report_ids.numel(), trained, top=report_top)  # fail before the calibration, not after it
        with warnings_said(console, "note"):
            calibrations = calibrate_each(
                loaded, contents, solvers=SOLVERS if report else (solver,), tokenizer=tokenizer, reduced=reduced,
                reduced_per_head=reduced_per_head, tokens=tokens, window=window, progress=not quiet,
                model_id=BUNDLED if model == BUNDLED else None,
            )  # fmt: skip
        calibration = calibrations[solver]
        calibration.save(out)
        say(console, _in_words(out, calibration))
        recall_report = None
        if report_ids is not None:
            recall_report = measure_recall(
                loaded, list(calibrations.values()), [report_ids], top=report_top, window=window, progress=not quiet
            )
            if not as_json:
                Console(highlight=False).print(recall_report)
            if not no_pictures(console):
                recall_report.plot(out.with_suffix(".png"))
                say(console, f"plot: {out.with_suffix('.png')}")
        if as_json:
            recall = None if recall_report is None else {**asdict(recall_report), "title": recall_report.title()}
            print_json({"file": str(out), **calibration.settings(), "recall": recall})


def _report_ids(
    tokenizer: Any, contents: list[str], tokens: int, report_content: str | None, length: int, window: int
) -> Tensor:
    """The tokens of the report, int64 ``[N]``: from ``report_content``, or from ``contents`` after ``tokens``."""
    import torch

    from longspan.hf.calibration.collect import token_ids

    if report_content is not None:
        return token_ids(tokenizer, report_content)[:length]
    ids = torch.cat([token_ids(tokenizer, text) for text in contents])
    # Calibration also counts the first token of each text, so the report never starts inside its tokens.
    rest = ids[tokens:][:length]
    if rest.numel() < min(length, 2 * window):
        raise LongspanError(
            f"the texts have {ids.numel():,} tokens; after {tokens:,} for the calibration {rest.numel():,} remain for "
            "the report, which is too few; pass more --text, fewer --tokens, or --report-text"
        )
    return rest


def _in_words(out: Path, calibration: Calibration) -> str:
    return (
        f"{out}: {len(calibration.layers)} layers, {calibration.reduced} numbers per token and layer, "
        f"{calibration.reduced_per_head} per key head, by {calibration.solver} from {calibration.tokens:,} tokens"
    )
