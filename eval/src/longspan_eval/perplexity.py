"""How well a model predicts given tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan_eval.interval import half_width

SLICE = 1024  # tokens whose logits are held in fp32 at once


def token_losses(logits: Tensor, input_ids: Tensor, positions: Sequence[int]) -> Tensor:
    """The loss, in nats, of single tokens of one row.

    Args:
        logits: ``[K, V]``, of the last ``K`` of the row's ``N`` tokens.
        input_ids: ``[N]``.
        positions: which tokens; each is predicted by the logits one before it, which must be among the ``K``.

    Returns:
        ``[len(positions)]`` in fp32.
    """
    first = input_ids.shape[0] - logits.shape[0]
    if positions and min(positions) - 1 < first:
        raise ValueError(f"token {min(positions)} is predicted before the first logits, those of token {first}")
    rows = [position - 1 - first for position in positions]
    return cross_entropy(logits[rows].float(), input_ids[list(positions)], reduction="none")


def sliced_losses(logits: Tensor, input_ids: Tensor, positions: Sequence[int]) -> list[float]:
    """``token_losses`` of many tokens, ``SLICE`` at a time, as a list."""
    slices = (positions[at : at + SLICE] for at in range(0, len(positions), SLICE))
    return [loss for part in slices for loss in token_losses(logits, input_ids, part).tolist()]


def perplexity(losses: Sequence[float]) -> float:
    """``exp`` of the mean loss in nats; infinite if that overflows."""
    mean = math.fsum(losses) / len(losses)
    return math.exp(mean) if mean < 700 else math.inf


def over_prompts(
    losses: Sequence[tuple[float, int]], blocks: Sequence[int]
) -> tuple[float, tuple[float, float] | None]:
    """The perplexity of all scored tokens of several prompts, and its 95% interval.

    Args:
        losses: of each prompt the mean loss in nats, and the number of tokens that it is the mean of.
        blocks: the block of each. Prompts of one block share tokens, so that together they are one observation.

    Returns:
        NaN if there is none; and ``exp`` of Student's interval of the blocks' mean losses, None for fewer than two.
    """
    losses = [(round(loss, 6), tokens) for loss, tokens in losses]  # as the journal keeps them: the same when resumed
    if not losses:
        return math.nan, None
    parts: dict[int, list[tuple[float, int]]] = {}
    for block, one in zip(blocks, losses, strict=True):
        parts.setdefault(block, []).append(one)
    mean, total = _mean(losses)
    if len(parts) < 2:
        return perplexity([mean]), None
    means, tokens = zip(*map(_mean, parts.values()), strict=True)
    half = half_width(means, [count / total for count in tokens])
    return perplexity([mean]), (perplexity([mean - half]), perplexity([mean + half]))


def _mean(losses: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """The mean loss of a token, and of how many it is."""
    tokens = sum(count for _, count in losses)
    return math.fsum(loss * count for loss, count in losses) / tokens, tokens
