"""One self-contained HTML page: an answer, token by token, beside the text and what the heads looked at of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from longspan.documents.asking import Answer
from longspan.documents.document import GRAIN, Document
from longspan.documents.passages import Range, looked_at
from longspan.documents.recorded import Recorded
from longspan.files import write
from longspan.recording import html
from longspan.text.detokenize import IncrementalDetokenizer

_BODY = """<header><h1>{question}</h1>
<p id="answer" aria-label="the answer, token by token">{answer}</p>
<p id="about" aria-live="polite">Shown is what the heads looked at while the answer was written, the more often the
darker. It is no proof of the answer. Point at a token, or walk with the arrow keys, for what they looked at then.</p>
</header>
<main id="text" aria-label="the text, part by part">{text}</main>
"""


def write_page(path: str | os.PathLike[str], document: Document, question: str, answer: Answer, seen: Recorded) -> None:
    """Write the page; it asks for nothing from anywhere, and all text in it is escaped.

    Args:
        seen: what was recorded while ``answer`` was written; see ``Document.ask_recorded``.

    Raises:
        OSError: it cannot be written.
    """
    write(path, page(document, question, answer, seen))


def page(document: Document, question: str, answer: Answer, seen: Recorded) -> str:
    """The page as a string; see ``write_page``."""
    steps = [looked_at(step, GRAIN)[0] for step in seen.steps]
    ranges = sorted({tokens for step in steps for tokens in step})
    number = {tokens: n for n, tokens in enumerate(ranges)}
    # How often each part of the text was looked at for each token of the answer, as [part, times, part, times, ...].
    data = [[x for tokens, times in sorted(step.items()) for x in (number[tokens], times)] for step in steps]
    tokens = "".join(
        f'<span data-t="{n}" tabindex="0">{html.text(text)}</span>'
        for n, text in enumerate(_texts(document.tokenizer, answer.tokens))
    )
    body = _BODY.format(
        question=html.text(question), answer=tokens, text="".join(_parts(document, ranges, sum(steps, Counter())))
    )
    return html.page("longspan.documents", question, body, data)


def _texts(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The text of each token of an answer; of special ones their names."""
    told, texts = IncrementalDetokenizer(tokenizer), list[str]()
    for token in tokens:
        texts += told.alternatives([token])
        told.add(token)
    return [*texts[:-1], *(text + told.end() for text in texts[-1:])]


def _parts(document: Document, ranges: list[Range], counts: Counter[Range]) -> list[str]:
    """The text in order, each part that was looked at in an element of its own; what lies between in short."""
    contents, elements, at = document.contents, [], 0
    for n, (start, stop) in enumerate(ranges):
        places = contents.places[start:stop]
        places = places[places[:, 0] >= 0]
        if not len(places):
            continue
        first, last = max(int(places[:, 0].min()), at), int(places[:, 1].max())
        if last <= at:
            continue
        if first > at:
            elements.append(f'<i title="{first - at:,} characters at which nobody looked"> … </i>')
        shown = f"[characters {first:,} to {last:,}]" if contents.text is None else contents.text[first:last]
        elements.append(f'<span data-p="{n}" title="{counts[start, stop]} times">{html.text(shown)}</span>')
        at = last
    return elements
