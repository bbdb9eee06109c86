"""``longspan ask``: a question about a document that was read before."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli import options, sampling
from longspan.cli.output import hushed, notes, print_json, say, warnings_said
from longspan.cli.texts import check_text
from longspan.errors import DocumentError, printable
from longspan.files import check
from longspan.loading.forms import WEIGHTS
from longspan.loading.models import load_model, load_tokenizer

if TYPE_CHECKING:
    from longspan.documents import Answer, Document, Passage
    from longspan.documents.manifest import Facts
    from longspan.drafting import Drafts


@options.examples(
    "longspan methods | longspan read - --model bundled --out methods.longspan",
    'longspan ask methods.longspan "Which method keeps every key?"',
    'longspan ask methods.longspan "Which method keeps every key?" --passages',
)
def ask(
    document: options.DocumentArgument,
    question: Annotated[str, typer.Argument(help="The question.")],
    model: options.ReaderModel = None,
    max_new_tokens: options.AnswerTokens = 200,
    draft: options.Draft = None,
    temperature: sampling.Temperature = None,
    top_p: sampling.TopP = None,
    top_k: sampling.TopK = None,
    repetition_penalty: sampling.RepetitionPenalty = None,
    seed: sampling.Seed = None,
    stop: sampling.Stop = None,
    passages: Annotated[
        bool, typer.Option("--passages", help="Also print the sentences that the answer attended to most.")
    ] = False,
    html: Annotated[
        Path | None, options.new_path("Write an HTML page with the sentences that each answer token attended to.")
    ] = None,
    verify: options.Verify = False,
    weights: options.ReaderWeights = "auto",
    allow_other_weights: options.OtherWeights = False,
    kv_tier: options.KvTier = "device",
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer a question about a document. The answer is streamed to stdout; all other output goes to stderr."""
    check_text("QUESTION", question)
    if html is not None:
        check(html)
    writing = sampling.generate_options(
        temperature=temperature, top_p=top_p, top_k=top_k, repetition_penalty=repetition_penalty, seed=seed, stop=stop
    )
    console = notes(quiet)
    with hushed(quiet), warnings_said(console, "note"):
        opened = open_with_model(
            document, model, verify=verify, kv_tier=kv_tier, device=device, weights=weights, others=allow_other_weights,
            draft=draft,
        )  # fmt: skip
    stream = None if as_json else typed
    if passages or html is not None:
        answer, attended = opened.ask_attended(question, max_new_tokens, stream=stream, **writing)
        if html is not None:
            from longspan.documents.page import write_page

            write_page(html, opened, question, answer, attended)
    else:
        answer = opened.ask(question, max_new_tokens, stream=stream, **writing)
    if as_json:
        about = {"document": str(document), "question": question, "weights_differ_by": opened.contents.foreign}
        print_json(about | as_plain(answer, passages))
        return
    print()
    if passages:
        for line in passage_lines(answer.passages or ()):
            print(printable(line))
    say(console, in_words(answer, max_new_tokens))


def reader_of(path: Path, model: str | None) -> tuple[str, Facts]:
    """The name of the model that read a document, unless one is given, and the document's facts.

    Raises:
        DocumentError: there is no document, or nothing says what its model was loaded from.
    """
    from longspan.documents.folder import Folder, placed

    facts = Folder(placed(path)).manifest().facts
    name = facts.source if model is None else model
    if not name:
        raise DocumentError(f"{path}: does not say what its {facts.model} was loaded from; name it with --model")
    return name, facts


def computed_as(facts: Facts, dtype: str, weights: str) -> tuple[str, str]:
    """The dtype and the form of the weights of the model that read a document, where these are ``"auto"``."""
    if weights in WEIGHTS:  # which says the dtype
        return dtype, weights
    known = facts.dtype if dtype == "auto" else dtype
    return known, facts.weights if dtype == weights == "auto" and facts.weights else weights


def open_with_model(
    path: Path, model: str | None, *, verify: bool, kv_tier: str, device: str, weights: str, others: bool,
    draft: str | None,
) -> Document:  # fmt: skip
    """A document with the model that read it, or with its other weights if ``others`` may answer.

    Raises:
        DocumentError: see ``Document.open``; or nothing says what the model was loaded from.
    """
    from longspan.documents import Document

    name, facts = reader_of(path, model)
    dtype, weights = computed_as(facts, "auto", weights)
    loaded = load_model(name, window=facts.window, dtype=dtype, weights=weights, device=device)
    tokenizer = load_tokenizer(name, loaded)
    return Document.open(
        path, loaded, tokenizer, verify=verify, kv_tier=kv_tier, other_weights=others,
        draft=draft,  # type: ignore[arg-type]  # extend checks the value
    )  # fmt: skip


def typed(text: str) -> None:
    """Print a part of an answer; a terminal gets control characters as escapes, since it would obey them."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def as_plain(answer: Answer, passages: bool) -> dict[str, Any]:
    """An answer as plain values."""
    shown = [vars(one) for one in answer.passages or ()] if passages else None
    return vars(answer) | {"tokens": list(answer.tokens), "passages": shown, **drafts_plain(answer.drafts)}


def drafts_plain(drafts: Drafts | None) -> dict[str, Any]:
    """What was drafted for an answer as a plain value."""
    return {"drafts": None if drafts is None else asdict(drafts)}


def drafts_words(drafts: Drafts | None) -> str:
    """What was drafted for an answer, in words; nothing if the model does not draft."""
    return "" if drafts is None else f", {drafts.drafted:,} drafted of which {drafts.accepted:,} were accepted"


def passage_lines(passages: tuple[Passage, ...]) -> list[str]:
    """The passages of an answer, to print."""
    if not passages:
        return ["", "the answer attended to no sentence more than a neutral question does"]
    lines = ["", "what the answer attended to most, compared with a neutral question; it is no proof of the answer:"]
    for one in passages:
        where = f"{one.source}, " if one.source else ""
        text = "(its text was not kept)" if one.text is None else " ".join(one.text.split())
        lines += ["", f"{one.lift:.1f} times as much: {where}characters {one.first:,} to {one.last:,}", f"  {text}"]
    return lines


def in_words(answer: Answer, max_new_tokens: int) -> str:
    """An answer's costs, and whether it was cut."""
    words = f"{len(answer.tokens)} tokens in {answer.seconds:.2f} s, the first after {answer.first_token_seconds:.2f} s"
    if answer.bytes_read is not None:
        words += f", {answer.bytes_read / 2**20:,.1f} MiB read from disk"
    if answer.peak_anonymous is not None:
        words += f", {answer.peak_anonymous / 2**20:,.0f} MiB of memory at most"
    return words + drafts_words(answer.drafts) + sampling.cut_words(answer.finish, max_new_tokens)
