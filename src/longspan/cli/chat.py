"""``longspan chat``: a conversation about a document."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from longspan.cli import options, sampling
from longspan.cli.ask import as_plain, in_words, open_with_model, passage_lines, typed
from longspan.cli.output import hushed, notes, print_json, say, warnings_said
from longspan.cli.texts import check_text
from longspan.errors import LongspanError, one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

    from longspan.documents.conversation import Conversation

COMMANDS = "/save FOLDER keeps document and conversation, /passages, /undo, /quit"


@options.examples(
    "longspan methods | longspan read - --model bundled --out methods.longspan",
    'echo "Which method keeps every key?" | longspan chat methods.longspan',
)
def chat(
    document: options.DocumentArgument,
    model: options.ReaderModel = None,
    max_new_tokens: options.AnswerTokens = 200,
    draft: options.Draft = None,
    temperature: sampling.Temperature = None,
    top_p: sampling.TopP = None,
    top_k: sampling.TopK = None,
    repetition_penalty: sampling.RepetitionPenalty = None,
    seed: sampling.Seed = None,
    stop: sampling.Stop = None,
    verify: options.Verify = False,
    weights: options.ReaderWeights = "auto",
    allow_other_weights: options.OtherWeights = False,
    kv_tier: options.KvTier = "device",
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer questions about a document in a conversation. Each line of the terminal, or of stdin, is a question.

    /save FOLDER saves document and conversation as a new document, /passages shows the sentences that the
    last answer attended to most, /undo removes the last question and its answer, /quit ends the conversation.
    """
    from longspan.documents.conversation import Conversation

    writing = sampling.generate_options(
        temperature=temperature, top_p=top_p, top_k=top_k, repetition_penalty=repetition_penalty, seed=seed, stop=stop
    )
    console, results = notes(quiet), notes(False)  # what a command was asked for is a result, whether quiet or not
    with hushed(quiet), warnings_said(console, "note"):
        opened = open_with_model(
            document, model, verify=verify, kv_tier=kv_tier, device=device, weights=weights, others=allow_other_weights,
            draft=draft,
        )  # fmt: skip
    say(console, f"{opened.tokens:,} tokens. {COMMANDS}")
    talk = Conversation(opened)
    for line in _lines(console):
        if line == "/quit":
            break
        try:
            if line.startswith("/"):
                _obey(talk, line, results)
            elif line:
                check_text("the question", line)
                answer = talk.say(line, max_new_tokens, stream=None if as_json else typed, **writing)
                if not as_json:
                    print(flush=True)
                say(console, in_words(answer, max_new_tokens))
        except (LongspanError, OSError) as error:  # a conversation goes on
            say(results, printable(f"error: {one_line(error)}"))
    if as_json:
        turns: list[dict[str, Any]] = [{"question": t.question, **as_plain(t.answer, False)} for t in talk.turns]
        print_json({"document": str(document), "turns": turns})


def _lines(console: Console) -> Iterator[str]:
    with suppress(AttributeError):  # a line that is not UTF-8 is refused alone, and the conversation goes on
        sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    while True:
        if sys.stdin.isatty():
            console.print("> ", end="")
        line = sys.stdin.readline()
        if not line:
            return
        yield line.strip()


def _obey(talk: Conversation, line: str, console: Console) -> None:
    command, _, rest = line.partition(" ")
    if command == "/save" and rest.strip():
        saved = talk.save(os.path.expanduser(rest.strip()))  # no shell has done that here
        say(console, f"{saved.tokens:,} tokens in {saved.path}")
    elif command == "/passages":
        for shown in passage_lines(talk.passages()):
            say(console, printable(shown))
    elif command == "/undo":
        say(console, printable(f"taken back: {talk.undo().question}"))
    elif command == "/save":
        say(console, "/save takes a folder: /save FOLDER")
    else:
        say(console, printable(f"{line}: no such command; there are {COMMANDS}"))
