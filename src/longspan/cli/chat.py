"""``longspan chat``: a conversation about a document."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.ask import as_plain, in_words, open_with_model, passage_lines, typed
from longspan.cli.options import Json, KvTier, Quiet, check_text, hushed, notes, print_json, say
from longspan.errors import LongspanError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from longspan.documents.conversation import Conversation

COMMANDS = "/save FOLDER keeps document and conversation, /passages, /undo, /quit"


def chat(
    document: Annotated[Path, typer.Argument(help="A document, as `longspan read` made it.")],
    model: Annotated[
        str | None, typer.Option(help="The model that read it; loaded from where it was then, unless given.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Length of each answer at most.", min=1)] = 200,
    verify: Annotated[bool, typer.Option("--verify", help="Read every checksum before.")] = False,
    kv_tier: KvTier = "device",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask a document, with what was asked before in view. Questions come from the terminal, or line by line on stdin.

    /save FOLDER keeps document and conversation as a document, /passages shows what the heads look at for the last
    answer, /undo takes the last question back, /quit ends.
    """
    from longspan.documents.conversation import Conversation

    console, results = notes(quiet), notes(False)  # what a command was asked for is a result, whether quiet or not
    with hushed(quiet):
        opened = open_with_model(document, model, verify=verify, kv_tier=kv_tier, device=device)
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
                answer = talk.say(line, max_new_tokens, stream=None if as_json else typed)
                if not as_json:
                    print(flush=True)
                say(console, in_words(answer))
        except (LongspanError, OSError) as error:  # a conversation goes on
            say(results, printable(f"error: {' '.join(str(error).split())}"))
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
        saved = talk.save(rest.strip())
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
