"""One self-contained HTML page: a text beside a map of the chunks that each head keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.attend import Choice
from longspan.errors import LongspanError
from longspan.files import write
from longspan.recording import html
from longspan.recording.chunks import Chunking, kept_map

_BODY = """<header><h1>{title}</h1><dl>{facts}</dl></header>
<main>
<section id="text" aria-label="the text, chunk by chunk">{text}</section>
<aside>
<p class="legend"><i class="chosen"></i> chosen <i class="forced"></i> always kept \
<i class="answer"></i> contains the answer</p>
<div id="frame"><canvas id="map" role="img" tabindex="0" aria-label="{label}"></canvas></div>
<div id="about" aria-live="polite"><p>Point at a chunk in the map or in the text, or use the arrow keys.</p></div>
</aside>
</main>
"""


def chunk_texts(tokenizer: Any, ids: Sequence[int], chunks: Chunking) -> list[str]:
    """The text of each chunk. A character that a border splits becomes a replacement character in both chunks.

    Args:
        tokenizer: a transformers tokenizer.
        ids: all tokens.
        chunks: the chunks of ``ids``.

    Raises:
        ValueError: the chunks have another number of tokens than ``ids``.
    """
    if len(ids) != chunks.stop:
        raise LongspanError(f"the chunks cover {chunks.stop} tokens, but ids has {len(ids)}")

    def decode(a: int, b: int) -> str:
        return str(tokenizer.decode(list(ids[a:b]), clean_up_tokenization_spaces=False))

    texts = []
    for a, b in chunks.spans():
        # Some tokenizers drop a leading space, so decode the previous token too and cut its text off.
        previous = decode(a - 1, a) if a else ""
        both = decode(a - 1, b) if a else ""
        texts.append(both[len(previous) :] if a and both.startswith(previous) else decode(a, b))
    return texts


def write_page(
    path: str | Path,
    choices: Sequence[Choice],
    chunks: Chunking,
    texts: Sequence[str],
    *,
    answers: Sequence[int] = (),
    title: str,
    facts: Mapping[str, str] | None = None,
    kind: str = "head",
) -> None:
    """Write the page. It loads nothing from other addresses, and all text in it is escaped.

    Args:
        path: the HTML file.
        choices: the choices of all layers for one query, see ``Trace.at``.
        chunks: the chunks of the text.
        texts: the text of each chunk, see ``chunk_texts``.
        answers: the chunks that contain the answer.
        title: of the page.
        facts: names and values shown above the text.
        kind: the unit that chooses: ``"head"``, ``"group"`` (of a key head) or ``"layer"``.

    Raises:
        OSError: the file cannot be written.
        ValueError: the choices do not belong to one query, or the chunks do not fit the choices or the texts.
    """
    if len(texts) != len(chunks):
        raise LongspanError(f"{len(chunks)} chunks require {len(chunks)} texts, not {len(texts)}")
    rows, kept = kept_map(choices, chunks)
    data = {
        "rows": rows,
        "kept": ["".join(map(str, row)) for row in kept.tolist()],
        "spans": chunks.spans(),
        "answers": sorted(answers),
        "kind": kind,
    }
    answer_chunks = set(answers)
    spans = (
        f'<span data-c="{n}"{" class=answer" if n in answer_chunks else ""}>{html.text(text)}</span>'
        for n, text in enumerate(texts)
    )
    body = _BODY.format(
        title=html.text(title),
        facts="".join(f"<dt>{html.text(key)}</dt><dd>{html.text(value)}</dd>" for key, value in (facts or {}).items()),
        text="".join(spans),
        label=html.text(f"{len(rows)} {kind}s by {len(chunks)} chunks: the chunks that each {kind} keeps"),
    )
    write(path, html.page("longspan.recording", title, body, data))
