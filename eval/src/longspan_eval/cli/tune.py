"""``longspan tune``: find out which method and options are best for a model at a length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan import files
from longspan.cli import options
from longspan.cli.output import notes, print_json, say, wide
from longspan.cli.texts import STDIN, read_text
from longspan.errors import LongspanError
from longspan.loading.models import load_model, load_tokenizer, quiet_transformers
from longspan.model.preset import ENDING
from longspan.signals import Stopped

if TYPE_CHECKING:
    from rich.console import Console

    from longspan.hf.progress_bar import Prefill
    from longspan_eval.reading import PlantedReading
    from longspan_eval.session import Session
    from longspan_eval.tune.halving import Outcome


@options.examples(
    "longspan tune bundled --length 4x --minutes 2 --out mine.json",
    'longspan generate bundled "Once upon a time" --method mine.json',
)
def tune(
    model: options.ModelArgument,
    length: Annotated[str, typer.Option(help="The length of text and answer in tokens (16384, 32k) or windows (4x).")],
    text: Annotated[
        Path | None, typer.Option(help="A text to plant facts in; - is stdin; default: the bundled held-out text.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="The time for measuring, in minutes.", min=0)] = 10,
    out: Annotated[Path | None, options.new_path(f"The preset to write, a {ENDING} file that --method takes.")] = None,
    journal: Annotated[Path, typer.Option(help="The file of all samples; the same command continues from it.")] = Path(
        "longspan-tune.jsonl"
    ),
    seed: Annotated[int, typer.Option(help="The seed of the planted facts.", min=0)] = 0,
    window: options.Window = None,
    dtype: options.Dtype = "auto",
    weights: options.Weights = "auto",
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure which method, options and declared window are best for a model at a length, by successive halving.

    Facts are planted in a text and asked for, and the perplexity of the text's end is taken. The command prints a table
    and the line to use. Each sample is saved at once: the same command continues a run that was stopped, and with more
    --minutes one that is done.
    """
    options.length("--length", length, window=1)  # what cannot be is refused before a model is loaded
    if out is not None:
        if out.suffix != ENDING:
            raise LongspanError(f"--out {out}: the name of a preset ends in {ENDING}")
        files.check(out)
    content, name = _content(text)
    console = notes(quiet)
    quiet_transformers()
    loaded = load_model(model, window=window, dtype=dtype, weights=weights, device=device, quiet=quiet)
    from longspan.hf.preset import identity_of
    from longspan_eval.journal import Journal
    from longspan_eval.measure import Keys
    from longspan_eval.session import Session
    from longspan_eval.subject import Subject
    from longspan_eval.tune.book import Book
    from longspan_eval.tune.candidates import candidates
    from longspan_eval.tune.report import report
    from longspan_eval.tune.run import Tuning, measure

    tokenizer = load_tokenizer(model, loaded)
    subject = Subject.of(loaded, tokenizer, window=window)
    tokens = options.length("--length", length, subject.window)
    if tokens <= subject.window:
        raise LongspanError(
            f"--length {length}: {tokens:,} tokens fit the window of {subject.window:,}, where the model is best as it "
            "is; give a longer --length, or declare a smaller --window"
        )
    book = Book(content, name, tokenizer, tokens, seed=seed)
    tuning = Tuning(candidates(subject.window), subject.window, tokens, book, 60 * minutes)
    say(console, f"{len(tuning.specs)} candidates, {tokens:,} tokens of {name}, which has {book.tokens:,}")
    if book.apart == 1:
        say(
            console,
            "note: texts overlap, so that intervals of perplexity say nothing of other texts; --text takes more",
        )
    session, keys = Session(loaded, tokenizer, window=window), Keys(subject, loaded.device.type)
    done: dict[tuple[int, int], Outcome] = {}
    code = 0
    with Journal(journal) as kept, _progress(session, tuning.seconds, console) as begun:
        try:
            measure(tuning, session, keys, kept, done, begun)
        except KeyboardInterrupt:
            code = 130
        except Stopped as signal:
            code = signal.code
    session.detach()
    if code:
        say(console, f"stopped, with {len(done)} texts read in {journal}; the same command goes on from here")
    found = report(tuning, done, identity_of(loaded)) if not code or len(tuning.standing(done).rows) > 1 else None
    if found is not None:
        print_json(found.to_dict()) if as_json else wide().print(found)
        if not as_json:
            print(found.line)
    if code:
        raise typer.Exit(code)
    if out is not None and found is not None:
        files.write(out, found.preset.to_json())
        say(console, f"{out}: for longspan.extend(model, {str(out)!r}) and --method {out}")


def _content(text: Path | None) -> tuple[str, str]:
    """A text and its name."""
    if text is not None:
        return read_text(text), "standard input" if text == STDIN else text.name
    from longspan.bundled import heldout_text

    return heldout_text(), "the bundled held-out text"


@contextmanager
def _progress(session: Session, seconds: float, console: Console) -> Iterator[Callable[[PlantedReading, float], None]]:
    """On a terminal a bar over the time, with what is being read below it; else a line for each reading.

    Yields:
        What a measurement tells of every reading that begins.
    """
    if not console.is_terminal:
        yield lambda reading, spent: say(console, f"{_named(reading)} ({spent:.0f} of {seconds:.0f} s)")
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    from longspan.hf.progress_bar import following
    from longspan_eval.run import Bar

    columns = TextColumn("measuring"), BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f}%")
    with Bar(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task, what = bar.add_task("", total=seconds), ""

        def begun(reading: PlantedReading, spent: float) -> None:
            nonlocal what
            bar.below = what = _named(reading)
            bar.update(task, completed=spent)

        def tell(now: Prefill | None) -> None:
            bar.below = what if now is None else f"{what}: {now}"

        with following(session.model, tell):
            yield begun


def _named(reading: PlantedReading) -> str:
    return f"{reading.spec.label}, text {reading.seed + 1}"
