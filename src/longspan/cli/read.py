"""``longspan read``: read texts once, to ask about them many times."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.options import (
    BUNDLED,
    STDIN,
    Json,
    Quiet,
    hushed,
    load_model,
    load_tokenizer,
    method_or_auto,
    named_path,
    notes,
    one_stdin,
    print_json,
    read_text,
    refusals,
    say,
)
from longspan.cli.parameters import (
    CalibrationFile,
    Device,
    Dtype,
    KvTier,
    MethodOption,
    ModelOption,
    Parameters,
    ScaledAngles,
    Window,
)
from longspan.errors import LongspanError, printable
from longspan.signals import Stopped

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedModel

    from longspan.documents.document import Document

REDRAWN, RETOLD = 0.5, 30.0  # seconds from one state of the progress to the next, on a terminal and in a log

# What an append takes from the document that is there.
_OF_READING = {
    "method": "--method", "window": "--window", "settings": "--set", "angles": "--angles",
    "calibration": "--calibration", "layout": "--layout", "piece": "--piece", "text": "--no-text",
    "kv_dir": "--kv-dir",
}  # fmt: skip


def read(
    context: typer.Context,
    texts: Annotated[
        list[Path], typer.Argument(help="Text, PDF or HTML files, read one after the other; - is a text on stdin.")
    ],
    model: ModelOption,
    out: Annotated[
        Path,
        typer.Option(
            parser=named_path, metavar="PATH", help="The folder of the document: a new one, or its own with --append."
        ),
    ],
    method: MethodOption = "longheads:score=bounds",
    window: Window = None,
    settings: Parameters = None,
    angles: ScaledAngles = None,
    calibration: CalibrationFile = None,
    layout: Annotated[
        str,
        typer.Option(help="The layout of a prompt: auto, chat, plain, or a template with {document} and {question}."),
    ] = "auto",
    piece: Annotated[int, typer.Option(help="Tokens per forward; the document is saved after each.", min=1)] = 4096,
    text: Annotated[bool, typer.Option(help="Save the text with the document, which --passages of ask needs.")] = True,
    kv_tier: KvTier = "device",
    kv_dir: Annotated[
        Path | None,
        typer.Option(help="The folder for --kv-tier disk, on a fast disk; default: the folder for temporary files."),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Append the texts to the document in PATH.")] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read texts of any length once and save the model's cache as a document, for ask, chat and serve.

    The same command continues a reading that was stopped.
    """
    if append:
        _refuse_options(context)
    one_stdin(texts)
    console = notes(quiet)
    read_in = [("standard input" if path == STDIN else path.name, _text(path, console)) for path in texts]
    chosen = method_or_auto(method, settings or (), angles)
    loaded, tokenizer = load_model(model, window=window, dtype=dtype, device=device), load_tokenizer(model)
    import longspan
    from longspan.documents.appending import append_texts
    from longspan.documents.folder import Folder

    began = time.perf_counter()
    source = model if model == BUNDLED or not Path(model).exists() else str(Path(model).resolve())
    kept = [0, 0]

    def done(stop: int, total: int) -> None:
        kept[:] = stop, total

    try:
        with hushed(quiet), refusals():
            before = kept[0] = Folder(out).manifest().facts.tokens if append else _tokens_kept(out)
            with _progress(loaded, console, kept):
                if append:
                    document = append_texts(out, loaded, tokenizer, read_in, kv_tier=kv_tier, done=done)
                else:
                    document = longspan.read(
                        loaded,
                        tokenizer,
                        read_in,
                        method=chosen,
                        window=window,
                        calibration=calibration,
                        layout=layout,
                        piece=piece,
                        kv_tier=kv_tier,  # type: ignore[arg-type]  # checked by extend
                        kv_dir=kv_dir,
                        keep_text=text,
                        out=out,
                        source=source,
                        done=done,
                    )
    except (Stopped, KeyboardInterrupt):
        if (kept_words := _kept_words(out)) is not None:
            say(console, kept_words)
        raise
    except OSError as error:
        kept_words = _kept_words(out) or "nothing of it is kept"
        raise LongspanError(f"{error.filename or out}: {error.strerror or error}; {kept_words}") from error
    if append and document.tokens == before:
        say(console, f"{out}: ends with this text already; nothing was appended")
    _tell(document, out, before, time.perf_counter() - began, as_json, console)


def _refuse_options(context: typer.Context) -> None:
    """Raise ``LongspanError`` if an option was given that an append would leave unused."""
    given = [
        flag for name, flag in _OF_READING.items() if (s := context.get_parameter_source(name)) and s.name != "DEFAULT"
    ]
    if given:
        raise LongspanError(f"--append reads on as the document was read; leave out {', '.join(given)}")


def _tell(document: Document, out: Path, before: int, seconds: float, as_json: bool, console: Console) -> None:
    from longspan.methods.parse import written

    attachment = document.attachment()
    size = sum(file.stat().st_size for file in out.iterdir())
    name = written(attachment.attender.method)
    if as_json:
        about = {"document": str(out), "tokens": document.tokens, "method": name, "window": attachment.report.window}
        print_json({**about, "bytes": size, "seconds": round(seconds, 3)})
    else:
        print(out)
    last = f" for the last {document.tokens - before:,}" if before else ""
    say(console, f"{document.tokens:,} tokens under {name}, {size / 2**20:,.1f} MiB, {seconds:.1f} s{last}")


def _tokens_kept(out: Path) -> int:
    """How many tokens an unfinished reading has saved."""
    from longspan.documents.folder import Folder

    begun = Folder(out).unfinished()
    return begun.segments[-1].stop if begun is not None and begun.segments else 0


def _kept_words(out: Path) -> str | None:
    """How much of a reading that ends here is kept; None where nothing is."""
    from longspan.documents.folder import Folder

    begun, read = Folder(out).unfinished(), _tokens_kept(out)
    if begun is None or not read:
        return None
    total = begun.facts.tokens
    return f"{read:,} of {total:,} tokens are kept in {out}; the same command goes on from there"


def _text(path: Path, console: Console) -> str:
    from longspan.extract import extract, is_plain

    if is_plain(path):
        return read_text(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = extract(path)
    for warning in caught:
        say(console, printable(f"warning: {warning.message}"))
    return text


@contextmanager
def _progress(model: PreTrainedModel, console: Console, kept: list[int]) -> Iterator[None]:
    """How far the reading is, at which rate, and how long it will take: a bar on a terminal, else some lines."""
    if console.quiet:
        yield
        return
    from threading import Event, Thread

    from rich.progress import BarColumn, Progress, TextColumn

    from longspan.hf.prefill import Prefill, following

    over, within = Event(), [0.0]  # tokens of the piece that is being read

    def see(now: Prefill | None) -> None:
        within[0] = 0.0 if now is None else now.read

    def show(bar: Progress | None) -> None:
        task = bar.add_task("reading", total=None) if bar else None
        began, first = time.perf_counter(), kept[0]  # what an earlier run has read counts for no rate
        while not over.wait(RETOLD if bar is None else REDRAWN):
            read, total = min(kept[0] + within[0], kept[1] or kept[0] + within[0]), kept[1]
            rate = (read - first) / (time.perf_counter() - began)
            words = f"{read:,.0f} of {total:,} tokens" if total else "reading"
            if total and rate:
                minutes, seconds = divmod(round((total - read) / rate), 60)
                words += f", {rate:,.0f} tokens/s, {minutes}:{seconds:02} left"
            if bar is None or task is None:
                say(console, words)
            else:
                bar.update(task, total=total or None, completed=read, description=words)

    columns = BarColumn(bar_width=20), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) if console.is_terminal else nullcontext() as bar:
        thread = Thread(target=show, args=(bar,), daemon=True)
        thread.start()
        try:
            with following(model, see):
                yield
        finally:
            over.set()
            thread.join()
