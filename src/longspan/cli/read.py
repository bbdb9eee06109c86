"""``longspan read``: read texts once, to ask about them many times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli import options
from longspan.cli.ask import computed_as, reader_of
from longspan.cli.checking import checked_on_facts, is_wanted
from longspan.cli.output import hushed, notes, print_json, refusals, say
from longspan.cli.texts import STDIN, check_text, one_stdin, read_text
from longspan.errors import DocumentError, LongspanError, printable
from longspan.loading.models import load_model, load_tokenizer
from longspan.loading.names import origin
from longspan.signals import Stopped

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedModel

    from longspan.documents.document import Document
    from longspan.documents.selftest import Checked

RETOLD = 30.0  # seconds from one line about the progress to the next, in a log

# Options that an append takes from its document.
_OF_READING = (
    "method", "window", "settings", "angles", "calibration", "layout", "system", "prefill_chunk", "kv", "text",
    "kv_dir", "check",
)  # fmt: skip


@options.examples(
    "longspan methods | longspan read - --model bundled --out methods.longspan",
    "longspan documents",
)
def read(
    context: typer.Context,
    texts: Annotated[
        list[Path], typer.Argument(help="Text, PDF or HTML files, an empty line between them; - is a text on stdin.")
    ],
    out: Annotated[
        Path | None,
        options.new_path(
            "The folder of the document: a new one, or its own with --append; default: NAME.longspan in the current "
            "folder for a first text NAME.txt."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help=f"{options.MODEL} With --append the document's own unless given.")
    ] = None,
    method: options.MethodOption = "auto",
    window: options.Window = None,
    settings: options.Parameters = None,
    angles: options.ScaledAngles = None,
    calibration: options.CalibrationFile = None,
    layout: Annotated[
        str,
        typer.Option(
            help="The layout of a prompt: auto, chat, instructed, quoted, plain, or a template with {document} and "
            r"{question}, in which \n is a line break."
        ),
    ] = "auto",
    system: Annotated[str, typer.Option(help="A system prompt, which the chat template puts before the text.")] = "",
    prefill_chunk: Annotated[
        int, typer.Option(help="Tokens per forward; the document is saved after each.", min=1)
    ] = 4096,
    kv: Annotated[
        str,
        typer.Option(help="How keys and values are saved: exact, or in int8, at half the size of bf16."),
    ] = "exact",
    text: Annotated[bool, typer.Option(help="Save the text with the document, so that passages show it.")] = True,
    extract_seconds: Annotated[
        float, typer.Option(help="The time limit in seconds to extract the text of a PDF or HTML file.", min=1)
    ] = 60,
    extract_memory: Annotated[
        str, typer.Option(help="The memory limit in bytes to extract the text of a PDF or HTML file.")
    ] = "2G",
    extract_size: Annotated[
        str, typer.Option(help="The largest size in bytes of a PDF or HTML file, and of its text.")
    ] = "64M",
    kv_tier: options.KvTier = "device",
    kv_dir: options.KvDir = None,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Plant facts in a copy of the text's end and ask for them; default: for texts of over two windows.",
        ),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Append the texts to the document in PATH.")] = False,
    dtype: options.Dtype = "auto",
    weights: options.Weights = "auto",
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read texts of any length once and save the model's cache as a document, for ask, chat and serve.

    The same command continues a reading that was stopped.
    """
    from longspan.documents.folder import placed

    out = _folder_for(texts[0], append) if out is None else out
    if append:
        out = placed(out)
        if given := options.given(context, _OF_READING):
            raise LongspanError(f"--append uses the settings of the document; leave out {given}")
        model, facts = reader_of(out, model)
        window, (dtype, weights) = facts.window, computed_as(facts, dtype, weights)
    elif model is None:
        raise LongspanError("--model is missing: name the model that reads the text")
    one_stdin(texts)
    check_text("--system", system)
    console = notes(quiet)
    memory, size = options.size("--extract-memory", extract_memory), options.size("--extract-size", extract_size)
    text_of = partial(_text, console=console, seconds=extract_seconds, memory=memory, size=size)
    read_in = [("standard input" if path == STDIN else path.name, text_of(path)) for path in texts]
    chosen = options.method_or_auto(method, settings or (), angles)
    loaded = load_model(model, window=window, dtype=dtype, weights=weights, device=device, quiet=quiet)
    tokenizer = load_tokenizer(model, loaded)
    import longspan
    from longspan.documents.appending import append_texts
    from longspan.documents.folder import Folder

    began = time.perf_counter()
    try:
        with hushed(quiet), refusals():
            whole = Folder(out).has_document()
            before = Folder(out).manifest().facts.tokens if append else _tokens_kept(out)
            with _progress(loaded, console, before) as done:
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
                        layout=layout.replace(r"\n", "\n"),  # a shell passes both characters on
                        system=system,
                        prefill_chunk=prefill_chunk,
                        kv_tier=kv_tier,  # type: ignore[arg-type]  # checked by extend
                        kv_dir=kv_dir,
                        keep_text=text,
                        kv=kv,
                        out=out,
                        source=origin(model),
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
    seconds = time.perf_counter() - began
    if check is None:
        check = not append and not whole and (as_json or not quiet) and is_wanted(document, seconds, console)
    checked = checked_on_facts(document, console, quiet) if check else None
    _tell(document, out, before, seconds, as_json, console, checked)


def _folder_for(text: Path, append: bool) -> Path:
    """The folder that a document gets if none is named."""
    if append:
        raise LongspanError("--out is missing: name the document to which --append adds the texts")
    if text == STDIN:
        raise LongspanError("--out is missing: a text on stdin has no name that its document could get")
    return Path(f"{text.stem}.longspan")


def _tell(
    document: Document,
    out: Path,
    before: int,
    seconds: float,
    as_json: bool,
    console: Console,
    checked: list[Checked] | None,
) -> None:
    from longspan.methods.parse import written

    attachment = document.attachment()
    size = sum(file.stat().st_size for file in out.iterdir())
    name = written(attachment.attender.method)
    if as_json:
        about = {"document": str(out), "tokens": document.tokens, "method": name, "window": attachment.report.window}
        print_json(
            {**about, "bytes": size, "seconds": round(seconds, 3), "check": checked and [vars(one) for one in checked]}
        )
    else:
        print(out)
    last = f" for the last {document.tokens - before:,}" if before else ""
    say(console, f"{document.tokens:,} tokens under {name}, {size / 2**20:,.1f} MiB, {seconds:.1f} s{last}")


def _tokens_kept(out: Path) -> int:
    """How many tokens an unfinished reading has saved."""
    from longspan.documents.folder import Folder

    begun = Folder(out).unfinished()
    return 0 if begun is None else begun.tokens


def _kept_words(out: Path) -> str | None:
    """How much of a reading that ends here is saved; None if nothing is."""
    from longspan.documents.folder import Folder

    begun = Folder(out).unfinished()
    if begun is None or not begun.tokens:
        return None
    return f"{begun.tokens:,} of {begun.facts.tokens:,} tokens are saved in {out}; run the same command to continue"


def _text(path: Path, *, console: Console, seconds: float, memory: int, size: int) -> str:
    from longspan.text.extract import is_plain
    from longspan.text.extraction import Extractor

    if is_plain(path):
        return read_text(path)
    if path.stat().st_size > size:
        raise LongspanError(f"{path}: the file has more than {size:,} bytes; --extract-size allows more")
    with TemporaryDirectory(prefix="longspan-text-") as folder:
        extractor = Extractor(
            seconds=seconds, memory=memory, longest=size,
            remedy="give the text itself, or allow more by --extract-seconds, --extract-memory or --extract-size",
            defect=lambda words: say(console, printable(f"warning: {path}: {words}")),
        )  # fmt: skip
        try:
            return extractor.text_of(path, Path(folder) / "text")
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error
        finally:
            extractor.close()


@contextmanager
def _progress(model: PreTrainedModel, console: Console, before: int) -> Iterator[Callable[[int, int], None]]:
    """Show how far a reading is, at which rate, and how long it will take: a bar on a terminal, else some lines.

    Args:
        before: tokens that an earlier run has read, which count for no rate.

    Yields:
        What the reading calls after each prefill chunk: with the tokens that are kept, and how many there are.
    """
    if console.quiet:
        yield lambda stop, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    from longspan.hf.progress_bar import following

    kept, total, began = before, 0, time.perf_counter()
    told = began

    def show(within: float) -> None:
        nonlocal told
        now, read = time.perf_counter(), min(kept + within, total) if total else kept + within
        rate, words = (read - before) / (now - began), f"{read:,.0f} {f'of {total:,} ' if total else ''}tokens"
        words += f", {rate:,.0f} tokens/s" if rate else ""
        if total and rate:
            minutes, seconds = divmod(round((total - read) / rate), 60)
            words += f", {minutes}:{seconds:02} left"
        if bar is not None:
            bar.update(bar.task_ids[0], total=total or None, completed=read, description=words)
        elif now - told >= RETOLD:
            told = now
            say(console, words)

    def done(stop: int, of: int) -> None:
        nonlocal kept, total
        kept, total = stop, of
        with suppress(OSError, SystemExit):  # which rich raises if a pipe is closed: a lost log ends no reading
            show(0)

    columns = BarColumn(bar_width=20), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) if console.is_terminal else nullcontext() as bar:
        if bar is not None:
            bar.add_task("reading", total=None)
        with following(model, lambda now: None if now is None else show(now.read)):
            yield done
