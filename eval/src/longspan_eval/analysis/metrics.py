"""Metrics of choices in a text of chunks: how much of it is chosen, how evenly, and whether the answer is.

All of it is of one query, at which every layer's heads (or groups, or the layer, if they share) chose; see
``Trace.at``. The definitions are those of Lu et al., 2024, arXiv 2402.10685, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attend import Choice
from longspan.recording.chunks import Chunking, check_covers, chosen, one_moment


def chunk_scores(choice: Choice, chunks: Chunking, *, forced: bool = True) -> Tensor:
    """The score of each chunk, the best of its units': ``[S, n]`` fp32; -inf if nothing in it has one.

    Args:
        forced: also score the tokens that are kept whatever is chosen, the first and the last ones.

    Raises:
        ValueError: no scores were recorded, or none decided (random picks, layers that take another's choice).
    """
    check_covers(chunks, choice.query)
    if choice.scores is None:
        raise ValueError(f"layer {choice.layer} has no scores: they were not recorded, or its choice was not by score")
    sharing, count = choice.scores.shape
    units = choice.scored_from + torch.arange(count)
    tokens = choice.origin + units[:, None] * choice.size + torch.arange(choice.size)
    at = chunks.of_tokens(tokens).flatten().expand(sharing, -1)
    scores = choice.scores.repeat_interleave(choice.size, dim=1)
    if not forced:
        for first, stop in choice.kept:
            scores[:, (tokens.flatten() >= first) & (tokens.flatten() < stop)] = float("-inf")
    best = torch.full((sharing, len(chunks)), float("-inf"))
    return best.scatter_reduce_(1, at, scores, "amax")


def counts(choices: Sequence[Choice], chunks: Chunking, *, forced: bool = True) -> Tensor:
    """How many of all layers' heads (groups, layers) keep each chunk: ``[n]`` int64."""
    one_moment(choices)
    return sum((chosen(one, chunks, forced=forced).sum(dim=0) for one in choices), torch.zeros(len(chunks)).long())


def cover_rate(choices: Sequence[Choice], chunks: Chunking) -> float:
    """Share of the chunks that any layer's head keeps, forced ones included: 0 to 1."""
    return float((counts(choices, chunks) > 0).double().mean())


def gini(amounts: Tensor) -> float:
    """Gini coefficient of non-negative ``[n]`` amounts: 0 if all are equal, ``(n - 1) / n`` if one has all.

    ``G = Σ_r (2 r - n - 1) x_r / (n Σ x)`` with amounts in ascending order, r from 1.
    """
    ordered = amounts.double().sort().values
    total, n = float(ordered.sum()), len(ordered)
    if not n or float(ordered[0]) < 0 or total == 0:
        raise ValueError("a Gini coefficient is that of amounts from 0, of which one at least is more")
    ranks = torch.arange(1, n + 1, dtype=torch.float64)
    return float(((2 * ranks - n - 1) * ordered).sum() / (n * total))


def uniformity(choices: Sequence[Choice], chunks: Chunking, *, forced: bool = True) -> float:
    """Gini coefficient of how often each chunk is kept, those that nobody keeps included: less is more even."""
    return gini(counts(choices, chunks, forced=forced))


def hits(choice: Choice, chunks: Chunking, answers: Sequence[int], top: int) -> Tensor:
    """Whether each one's ``top`` best chunks of those chosen among include one of ``answers``: ``[S]`` bool.

    Chunks with as high a score count against it: of ESA the best token of every head of a layer has the same one.
    """
    if top < 1:
        raise ValueError(f"top is a number of chunks from 1, not {top}")
    _check_answers(chunks, answers)
    scores = chunk_scores(choice, chunks, forced=False)
    own = scores[:, list(answers)].amax(dim=-1, keepdim=True)
    ahead = scores >= own
    ahead[:, list(answers)] = False
    return (own[:, 0] > float("-inf")) & (ahead.sum(dim=-1) < top)


def hit_rate(choices: Sequence[Choice], chunks: Chunking, answers: Sequence[int], top: int) -> float:
    """Share of (layer, head) whose ``top`` best chunks by score include a chunk with the answer: 0 to 1, or NaN.

    Ranked are the chunks that are chosen among (LongHeads' Eq 3 takes the first and the local ones whatever their
    scores). Chunks with the answer that are kept anyway count neither for nor against: nobody has to choose them. If
    no other chunk has the answer there is nothing to find, and the rate is NaN.

    Args:
        choices: of the query that the first token of the answer comes from.
        answers: the chunks that hold it, see ``Chunking.holding``.
    """
    one_moment(choices)
    found = torch.cat([hits(one, chunks, answers, top) for one in choices])
    return float(found.double().mean()) if _to_choose(choices, chunks, answers) else math.nan


def vote_rates(choices: Sequence[Choice], chunks: Chunking, answers: Sequence[int], top: int) -> tuple[float, float]:
    """Hit rates over all heads: the share of layers whose heads find the answer together, and whether the model's do.

    Each head votes for its ``top`` best chunks by score. The answer is found if it is among the ``top`` chunks with
    the most votes, those of a layer's heads or of all layers' heads; chunks with as many votes count against it. Both
    are NaN if ``hit_rate`` is.
    """
    one_moment(choices)
    if not _to_choose(choices, chunks, answers):
        return math.nan, math.nan
    found = [_votes(one, chunks, top) for one in choices]
    total = sum(found, torch.zeros(len(chunks)).long())
    layers = [_elected(votes, answers, top) for votes in found]
    return sum(layers) / len(layers), float(_elected(total, answers, top))


def _check_answers(chunks: Chunking, answers: Sequence[int]) -> None:
    if not answers or not all(0 <= one < len(chunks) for one in answers):
        raise ValueError(f"the answer lies in one or more of the chunks 0 to {len(chunks) - 1}, not in {list(answers)}")


def _to_choose(choices: Sequence[Choice], chunks: Chunking, answers: Sequence[int]) -> bool:
    """Whether a chunk with the answer is among those that some layer chooses among."""
    _check_answers(chunks, answers)
    best = torch.stack([chunk_scores(one, chunks, forced=False)[:, list(answers)].amax() for one in choices])
    return bool((best > float("-inf")).any())


def _votes(choice: Choice, chunks: Chunking, top: int) -> Tensor:
    """How many of a layer's heads have each chunk among their ``top`` best: ``[n]`` int64."""
    best = chunk_scores(choice, chunks, forced=False).topk(min(top, len(chunks)), dim=-1)
    return torch.bincount(best.indices[best.values > float("-inf")], minlength=len(chunks))


def _elected(votes: Tensor, answers: Sequence[int], top: int) -> bool:
    most = int(votes[list(answers)].max())
    others = [int(votes[n]) for n in range(len(votes)) if n not in set(answers)]
    return most > 0 and sum(other >= most for other in others) < top
