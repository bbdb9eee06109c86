"""One self-contained HTML page: an answer, token by token, beside the sentences of the text that it attended to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from longspan.documents.asking import Answer
from longspan.documents.document import Document
from longspan.documents.passages import Attended, Passage
from longspan.files import write
from longspan.recording import html
from longspan.text.detokenize import IncrementalDetokenizer

_BODY = """<header><h1>{question}</h1>
<p id="answer" aria-label="the answer, token by token">{answer}</p>
<p id="about" aria-live="polite">Shown are the sentences that the answer attended to most, compared with a neutral
question, the more the darker. They are no proof of the answer. Point at a token, or walk with the arrow keys, for the
sentences of that token.</p>
</header>
<main id="text" aria-label="the sentences, in the order of the text">{text}</main>
"""


def write_page(path: str | os.PathLike[str], document: Document, question: str, answer: Answer, seen: Attended) -> None:
    """Write the page; it asks for nothing from anywhere, and all text in it is escaped.

    Args:
        seen: of ``answer``; see ``Document.attended``.

    Raises:
        OSError: it cannot be written.
    """
    write(path, page(document, question, answer, seen))


def page(document: Document, question: str, answer: Answer, seen: Attended) -> str:
    """The page as a string; see ``write_page``."""
    # The last ones are of the whole answer.
    every = [*(seen.passages(n) for n in range(len(answer.tokens))), seen.passages()]
    places = sorted({_place(one): one for own in every for one in own}.items())
    number = {place: n for n, (place, _) in enumerate(places)}
    # Of each token the lift of its parts of the text, as [part, lift, part, lift, ...].
    data = [[x for one in own for x in (number[_place(one)], round(one.lift, 2))] for own in every]
    tokens = "".join(
        f'<span data-t="{n}" tabindex="0">{html.text(text)}</span>'
        for n, text in enumerate(_texts(document.tokenizer, answer.tokens))
    )
    shown = "".join(_part(n, one) for n, (_, one) in enumerate(places))
    body = _BODY.format(question=html.text(question), answer=tokens, text=shown)
    return html.page("longspan.documents", question, body, data)


def _place(one: Passage) -> tuple[int, int]:
    return one.begin, one.last - one.first


def _part(number: int, one: Passage) -> str:
    where = f"{one.source}, " if one.source else ""
    text = "its text was not kept" if one.text is None else " ".join(one.text.split())
    place = html.text(f"{where}characters {one.first:,} to {one.last:,}")
    return f'<p data-p="{number}"><i>{place}</i> <span>{html.text(text)}</span></p>\n'


def _texts(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The text of each token of an answer; of special ones their names."""
    told, texts = IncrementalDetokenizer(tokenizer), list[str]()
    for token in tokens:
        texts += told.alternatives([token])
        told.add(token)
    return [*texts[:-1], *(text + told.end() for text in texts[-1:])]
