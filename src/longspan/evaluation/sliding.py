"""Perplexity of a text under a window that slides over it, in the two ways of the literature. Their figures differ.

- ``score_new`` (Press et al., 2021, arXiv 2012.15840): each window scores only the tokens that the one before did not
  have, so every token counts once, with at least ``window - stride`` before it, but for those of the first window.
- ``whole_windows`` (the code of An et al., 2024, arXiv 2402.17463): each window scores all its tokens, also its first,
  which have next to nothing before them; so its figure is higher, and falls with the window by that alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from longspan.errors import DataError
from longspan.evaluation.filler import encode, start
from longspan.evaluation.generate import prefill
from longspan.evaluation.perplexity import perplexity, sliced_losses

Mode = Literal["new", "whole"]

STRIDE = 256


@dataclass(frozen=True)
class WindowLoss:
    """What one window gave.

    Attributes:
        begin, end: the tokens of the text that were read, ``begin`` to ``end - 1``.
        first: the first of them that is scored; all after it are.
        loss: nats, summed over the scored tokens.
    """

    begin: int
    end: int
    first: int
    loss: float

    @property
    def scored(self) -> int:
        """How many tokens are scored."""
        return self.end - self.first


@dataclass(frozen=True)
class SlidingPerplexity:
    """The perplexity of a text: its value, the tokens that were scored, the windows that were read."""

    value: float
    scored: int
    windows: int


def score_new(
    model: PreTrainedModel, input_ids: Sequence[int], *, window: int, stride: int = STRIDE, skip: int = 0
) -> Iterator[WindowLoss]:
    """Windows that score the tokens new to them, one by one as they are read.

    The first window scores all its tokens but the text's first, which nothing predicts. The last one ends where the
    text does, and may have fewer than ``stride`` new ones.

    Args:
        model: stock or extended.
        input_ids: the text.
        window: tokens of a window.
        stride: tokens by which it moves, less than ``window``.
        skip: how many first tokens of the text are not scored. Where it is the longest window of a comparison, the same
            tokens are scored with each.

    Raises:
        ValueError: the text is shorter than a window, nothing of it would be scored, or a number is out of range.
    """
    _check(len(input_ids), window, stride)
    if stride >= window:
        raise ValueError(
            f"stride must be less than the window, not {stride} of {window}: the first new token has to follow on one"
        )
    if not 0 <= skip < len(input_ids):
        raise ValueError(f"skip must lie in 0..{len(input_ids) - 1}, not {skip}: the text has {len(input_ids)} tokens")
    return _score_new(model, input_ids, window, stride, skip)


def _score_new(
    model: PreTrainedModel, input_ids: Sequence[int], window: int, stride: int, skip: int
) -> Iterator[WindowLoss]:
    done, total = 1, len(input_ids)
    for end in [*range(window, total, stride), total]:
        first = max(done, skip)
        if first < end:
            yield _read(model, input_ids, end - window, end, first)
        done = end


def whole_windows(
    model: PreTrainedModel, input_ids: Sequence[int], *, window: int, stride: int = STRIDE
) -> Iterator[WindowLoss]:
    """Windows that score all their tokens but the first, one by one as they are read.

    They begin every ``stride`` tokens as long as they lie in the text whole. All have the same number of tokens, so the
    mean over the windows' mean losses, which is what that code takes, is the mean over all losses. (That code leaves
    out the last one or two windows.)

    Args:
        model: stock or extended.
        input_ids: the text.
        window: tokens of a window, two at least.
        stride: tokens by which it moves.

    Raises:
        ValueError: the text is shorter than a window, or a number is out of range.
    """
    _check(len(input_ids), window, stride)
    return (
        _read(model, input_ids, begin, begin + window, begin + 1)
        for begin in range(0, len(input_ids) - window + 1, stride)
    )


def sliding_perplexity(
    model: PreTrainedModel,
    tokenizer: Any,
    path: Path | str,
    *,
    window: int,
    stride: int = STRIDE,
    mode: Mode = "new",
    skip: int = 0,
) -> SlidingPerplexity:
    """The perplexity of a text file.

    Args:
        model: stock or extended; ``tokenizer`` is its.
        path: any text, in UTF-8.
        window, stride: tokens.
        mode: ``"new"`` for ``score_new``, ``"whole"`` for ``whole_windows``.
        skip: as of ``score_new``, for mode ``"new"`` alone.

    Raises:
        DataError: the file cannot be read.
        ValueError: as of the two.
    """
    if mode not in ("new", "whole"):
        raise ValueError(f"mode must be 'new' or 'whole', not {mode!r}")
    if mode == "whole" and skip:
        raise ValueError("skip is for mode 'new'; in mode 'whole' every window scores all its tokens")
    ids = read_tokens(tokenizer, Path(path))
    if mode == "new":
        return summed(score_new(model, ids, window=window, stride=stride, skip=skip))
    return summed(whole_windows(model, ids, window=window, stride=stride))


def summed(windows: Iterable[WindowLoss]) -> SlidingPerplexity:
    """``exp`` of the mean loss over all scored tokens of one or more windows."""
    read = list(windows)
    scored = sum(one.scored for one in read)
    if not scored:
        raise ValueError("perplexity needs at least one scored token")
    return SlidingPerplexity(perplexity([math.fsum(one.loss for one in read) / scored]), scored, len(read))


def read_tokens(tokenizer: Any, path: Path) -> list[int]:
    """The tokens of a text file, after the one that the tokenizer puts before a text, if it does so.

    Raises:
        DataError: the file is not there, not UTF-8, or empty.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return start(tokenizer) + encode(tokenizer, decoded(data, path))


def decoded(data: bytes, path: Path) -> str:
    """The text in a file's bytes; raises DataError where there is none, or it is not UTF-8."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error})") from error
    if not text.strip():
        raise DataError(f"{path}: it holds no text")
    return text


@torch.inference_mode()
def _read(model: PreTrainedModel, input_ids: Sequence[int], begin: int, end: int, first: int) -> WindowLoss:
    ids = torch.tensor([list(input_ids[begin:end])], device=model.device)
    logits, _ = prefill(model, ids, end - first + 1)
    losses = sliced_losses(logits[0], ids[0], range(first - begin, end - begin))
    return WindowLoss(begin, end, first, math.fsum(losses))


def _check(total: int, window: int, stride: int) -> None:
    if window < 2:
        raise ValueError(f"window must be at least 2, not {window}: a token is predicted from those before it")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, not {stride}")
    if total < window:
        raise ValueError(f"the text has {total} tokens, less than a window of {window}; take a longer one")
