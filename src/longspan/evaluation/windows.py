"""Perplexity as a task: windows that slide over texts, each a prompt without an answer, whose tokens' loss is taken.

Lengths are compared on equal terms. In mode ``new`` window ``k`` of a text ends at the same token at every length and
scores its last ``stride`` tokens, so all lengths score the same tokens and differ in what came before them: Press et
al.'s sliding window at each length, but for the tokens before the first window's last ``stride``. In mode ``whole``
window ``k`` begins at the same token at every length and scores all of its tokens but the first. See
``longspan.evaluation.sliding`` for both.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from longspan.errors import DataError, LongspanError
from longspan.evaluation.datafile import FileRef, given
from longspan.evaluation.filler import encode, start
from longspan.evaluation.sliding import STRIDE, Mode, decoded
from longspan.evaluation.task import Example, Record, Task

NAME = "perplexity"
STANDARD = "pydoc_data.topics"  # of the standard library: prose that is on every machine


@dataclass(frozen=True)
class Windows:
    """The windows of one or more texts, at any of the lengths that are compared.

    Attributes:
        texts: the name and the number of tokens of each.
        stride: tokens by which a window moves, and in mode ``new`` those that it scores.
        mode: ``"new"`` or ``"whole"``.
        records: what ``build`` makes a window of: the text (as the SHA-256 of what is in it), ``at``, the first token
            in mode ``whole`` and the one after the last in mode ``new``, and the two above.
    """

    texts: tuple[tuple[str, int], ...]
    stride: int
    mode: Mode
    records: tuple[Record, ...]

    def __str__(self) -> str:
        names = ", ".join(f"{name} ({tokens:,} tokens)" for name, tokens in self.texts)
        return f"{len(self.records):,} windows of {names}, a window every {self.stride:,} tokens, mode {self.mode}"


def find_windows(
    tokenizer: Any, paths: Sequence[Path], *, longest: int, stride: int = STRIDE, mode: str = "new"
) -> Windows:
    """The windows of texts.

    Args:
        paths: UTF-8 files, or folders whose ``*.txt`` are meant; none: ``pydoc_data.topics``.
        longest: the greatest length that is compared, in tokens.
        stride, mode: see ``Windows``.

    Raises:
        DataError: a text cannot be read, or is shorter than ``longest``.
        LongspanError: a number or the mode is out of range.
    """
    if mode not in get_args(Mode):
        raise LongspanError(f"the mode of {NAME} is {' or '.join(get_args(Mode))}, not {mode!r}")
    if stride < 1:
        raise LongspanError(f"the stride of {NAME} must be at least 1, not {stride}")
    texts: list[tuple[str, int]] = []
    records: list[Record] = []
    for name, ref in _sources(paths):
        total = len(_tokens(tokenizer, ref))
        if total < longest:
            raise DataError(
                f"{name}: it has {total:,} tokens, and a window of {longest:,} is asked for; "
                "give shorter lengths or, with --text, longer texts"
            )
        first = longest if mode == "new" else 0
        starts = range(0, total - longest + 1, stride)
        records += [{"text": ref, "at": first + begin, "stride": stride, "mode": mode} for begin in starts]
        texts.append((name, total))
    return Windows(tuple(texts), stride, mode, tuple(records))  # type: ignore[arg-type]  # it is one of the modes


def build(
    tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """A window of ``length`` tokens, with the tokens in it that are scored."""
    window = given(record, depth, NAME)
    stride, new = window["stride"], window["mode"] == "new"
    if new and stride >= length:
        raise ValueError(
            f"with a stride of {stride} a window takes {stride + 1} tokens: the first scored one has to follow another"
        )
    if length < 2:
        raise ValueError("a window takes 2 tokens: a token is predicted from those before it")
    begin = window["at"] - length if new else window["at"]
    ids = _tokens(tokenizer, window["text"])[begin : begin + length]
    scored = tuple(range(length - stride if new else 1, length))
    return Example(ids, ("",), seed, None, None, scored)


def no_score(prediction: str, references: Sequence[str]) -> float:
    """Nothing is answered; see the loss."""
    return 0.0


PERPLEXITY = Task(
    name=NAME,
    version=1,
    paper="Press et al., 2021, arXiv 2012.15840; An et al., 2024, arXiv 2402.17463",
    summary="perplexity of any text under a sliding window; lower is better",
    new_tokens=0,
    build=build,
    score=no_score,
    measure="perplexity",
)


def _sources(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """The name of each text, and the SHA-256 of it by which it is found again."""
    if not paths:
        return [(standard_name(), hashlib.sha256(standard_text().encode()).hexdigest())]
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path}: there are no *.txt in this folder")
        files += inside
    refs = [(str(file), FileRef.to(file)) for file in files]
    for n, (name, ref) in enumerate(refs):
        twin = next((other for other, same in refs[:n] if same == ref), None)
        if twin is not None:
            raise DataError(f"{name}: the same text as {twin}; give each once")
    return list(refs)


def standard_name() -> str:
    """What ``standard_text`` is called; it differs from one Python to the next."""
    return f"{STANDARD} of Python {'.'.join(map(str, sys.version_info[:2]))}"


@lru_cache(maxsize=1)
def standard_text() -> str:
    """About 450,000 characters of prose that every Python has."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


@lru_cache(maxsize=16)
def _tokens(tokenizer: Any, ref: str) -> list[int]:
    """The tokens of a text, after the one that the tokenizer puts before a text, if it does so."""
    text = decoded(ref.read(), ref.path) if isinstance(ref, FileRef) else standard_text()
    return start(tokenizer) + encode(tokenizer, text)
