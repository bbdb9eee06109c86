"""Perplexity as a task: windows that slide over texts, each a prompt without an answer, whose tokens' loss is taken.

Lengths are compared on equal terms. In mode ``new`` window ``k`` of a text ends at the same token at every length and
scores its last ``stride`` tokens, so all lengths score the same tokens and differ in what came before them: Press et
al.'s sliding window at each length, but for the tokens before the first window's last ``stride``. In mode ``whole``
window ``k`` begins at the same token at every length and scores all of its tokens but the first, as An et al.'s code
does: those have next to nothing before them, so its figure is higher, and falls with the length by that alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from longspan.bundled import heldout_text
from longspan.errors import LongspanError
from longspan.text.encode import beginning, encode
from longspan_eval.datafile import FileRef, given
from longspan_eval.errors import DataError
from longspan_eval.task import Example, Record, Task

Mode = Literal["new", "whole"]
Span = tuple[str, int, int]  # a text, the first token and the one after the last

NAME = "perplexity"
STRIDE = 256
STANDARD = "the held-out text of the bundled model"  # prose that is on every machine


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
        paths: UTF-8 files, or folders whose ``*.txt`` are meant; none: ``STANDARD``.
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
    for text in sources(paths):
        total = text.tokens(tokenizer)
        if total < longest:
            raise DataError(
                f"{text.name}: it has {total:,} tokens, and a window of {longest:,} is asked for; "
                "give shorter lengths or, with --text, longer texts"
            )
        records += windows_of(tokenizer, text, longest=longest, stride=stride, mode=mode)  # type: ignore[arg-type]
        texts.append((text.name, total))
    return Windows(tuple(texts), stride, mode, tuple(records))  # type: ignore[arg-type]  # it is one of the modes


def check_texts(paths: Sequence[Path]) -> None:
    """Raise DataError for what ``find_windows`` finds wrong with texts before it needs the tokenizer."""
    for text in sources(paths):
        _text(text.ref)


def windows_of(tokenizer: Any, text: WindowText, *, longest: int, stride: int, mode: Mode) -> list[Record]:
    """The windows of one text, in its order, as ``build`` takes them; none if it is shorter than ``longest``."""
    first = longest if mode == "new" else 0
    starts = range(0, text.tokens(tokenizer) - longest + 1, stride)
    return [{"text": text.ref, "at": first + begin, "stride": stride, "mode": mode} for begin in starts]


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


def scored_span(record: Record, length: int) -> Span:
    """The span scored by a window of ``length`` tokens."""
    at = record["at"]
    first, stop = (at - record["stride"], at) if record["mode"] == "new" else (at + 1, at + length)
    return record["text"], first, stop


def blocks(spans: Sequence[Span]) -> list[int]:
    """The block of each span: spans with a token in common are of one, and so are those that others connect."""
    made, block, end = [0] * len(spans), -1, ("", 0)
    for n in sorted(range(len(spans)), key=spans.__getitem__):
        text, first, stop = spans[n]
        if block < 0 or (text, first) >= end:
            block += 1
        end = text, stop if text != end[0] else max(stop, end[1])
        made[n] = block
    return made


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


@dataclass(frozen=True)
class WindowText:
    """A text that windows are cut from: its name, and the SHA-256 of what is in it, by which it is found again."""

    name: str
    ref: str

    def tokens(self, tokenizer: Any) -> int:
        """How many it has."""
        return len(_tokens(tokenizer, self.ref))


def sources(paths: Sequence[Path]) -> list[WindowText]:
    """The texts at these paths, as of ``find_windows``.

    Raises:
        DataError: a file cannot be read, a folder has no ``*.txt``, or two texts are the same.
    """
    if not paths:
        return [WindowText(STANDARD, hashlib.sha256(heldout_text().encode()).hexdigest())]
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path}: there are no *.txt in this folder")
        files += inside
    found = [WindowText(str(file), FileRef.to(file)) for file in files]
    for n, one in enumerate(found):
        twin = next((other.name for other in found[:n] if other.ref == one.ref), None)
        if twin is not None:
            raise DataError(f"{one.name}: the same text as {twin}; give each once")
    return found


@lru_cache(maxsize=16)
def _tokens(tokenizer: Any, ref: str) -> list[int]:
    """The tokens of a text, after those that the tokenizer puts before it."""
    return beginning(tokenizer) + encode(tokenizer, _text(ref))


def _text(ref: str) -> str:
    return _decoded(ref.read(), ref.path) if isinstance(ref, FileRef) else heldout_text()


def _decoded(data: bytes, path: Path) -> str:
    """The text in a file's bytes; raises DataError if there is none, or it is not UTF-8."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error})") from error
    if not text.strip():
        raise DataError(f"{path}: it holds no text")
    return text
