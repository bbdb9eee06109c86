"""One self-contained HTML page: a text beside the map of what each head keeps of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from longspan.attend import Choice
from longspan.files import write
from longspan.recording.chunks import Chunking, kept_map

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{title}</h1><dl>{facts}</dl></header>
<main>
<section id="text" aria-label="the text, chunk by chunk">{text}</section>
<aside>
<p class="legend"><i class="chosen"></i> chosen <i class="forced"></i> kept anyway \
<i class="answer"></i> holds the answer</p>
<div id="frame"><canvas id="map" role="img" tabindex="0" aria-label="{label}"></canvas></div>
<div id="about" aria-live="polite"><p>Point at a chunk in the map or in the text, or walk with the arrow keys.</p></div>
</aside>
</main>
<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def chunk_texts(tokenizer: Any, ids: Sequence[int], chunks: Chunking) -> list[str]:
    """The words of each chunk. A character that a border tears is a replacement sign on both its sides.

    Args:
        tokenizer: a transformers tokenizer.
        ids: all tokens.
    """
    if len(ids) != chunks.stop:
        raise ValueError(f"the chunks are those of {chunks.stop} tokens, not of {len(ids)}")

    def words(a: int, b: int) -> str:
        return str(tokenizer.decode(list(ids[a:b]), clean_up_tokenization_spaces=False))

    texts = []
    for a, b in chunks.spans():
        # Some tokenizers drop the space that a text begins with, so the token before it is decoded too.
        lead = words(a - 1, a) if a else ""
        whole = words(a - 1, b) if a else ""
        texts.append(whole[len(lead) :] if a and whole.startswith(lead) else words(a, b))
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
    """Write the page; it asks for nothing from anywhere, and all text in it is escaped.

    Args:
        choices: of one query, see ``Trace.at``.
        texts: the words of each chunk, see ``chunk_texts``.
        answers: the chunks that hold the answer.
        title: the page's.
        facts: what to say above the text, by name.
        kind: what chooses: ``"head"``, the ``"group"`` of a key head, or the ``"layer"``.
    """
    write(path, page(choices, chunks, texts, answers, title, facts or {}, kind))


def page(
    choices: Sequence[Choice],
    chunks: Chunking,
    texts: Sequence[str],
    answers: Sequence[int],
    title: str,
    facts: Mapping[str, str],
    kind: str = "head",
) -> str:
    """The page as a string; see ``write_page``."""
    if len(texts) != len(chunks):
        raise ValueError(f"{len(chunks)} chunks have a text each, not {len(texts)}")
    names, kept = kept_map(choices, chunks)
    data = {
        "rows": names,
        "kept": ["".join(map(str, row)) for row in kept.tolist()],
        "spans": chunks.spans(),
        "answers": sorted(answers),
        "kind": kind,
    }
    marked = set(answers)
    spans = (
        f'<span data-c="{n}"{" class=answer" if n in marked else ""}>{_text(text)}</span>'
        for n, text in enumerate(texts)
    )
    own = files("longspan.recording")
    return _HEAD.format(
        title=escape(title),
        facts="".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in facts.items()),
        text="".join(spans),
        label=escape(f"{len(names)} {kind}s by {len(chunks)} chunks: which chunks each {kind} keeps"),
        # The one way out of a script element is its end tag, which begins with this sign.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        style=(own / "page.css").read_text(encoding="utf-8"),
        script=(own / "page.js").read_text(encoding="utf-8"),
    )


def _text(text: str) -> str:
    """Escaped, and without characters that HTML cannot hold."""
    return escape("".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in text))
