"""The sentences of a text that an answer's tokens gave more attention than a neutral question's do.

Attention alone says little: most of it goes to the same few places whatever is asked. So each sentence's weight is
compared with the weight that the model gives it when it is asked what the text is about. It is no proof of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.attend import GroupWeights
from longspan.documents.contents import Contents
from longspan.documents.reading import forward
from longspan.documents.units import Units
from longspan.hf.cache import LongspanCache
from longspan.hf.hooks import Attachment

NEUTRAL = "What is this text about?"
MOST = 4  # sentences of an answer's passages


@dataclass(frozen=True)
class Passage:
    """A part of the text: a sentence, or several that follow one another.

    Attributes:
        text: its characters; None if the text was not kept.
        first, last: the places of these characters in ``source``, ``[first, last)``.
        source: the file or name of the text that the part lies in.
        begin: the place of the first character in the whole text of the document.
        share: of the attention of the answer's tokens, the mean over all heads and layers.
        lift: how many times as much that is as under a neutral question.
    """

    text: str | None
    first: int
    last: int
    source: str
    begin: int
    share: float
    lift: float


@dataclass(frozen=True)
class Attended:
    """The attention of an answer's tokens to a document.

    Attributes:
        weights: ``[A, U]`` fp32, of the query that gave each token of the answer to each unit of the text, the mean
            over heads and layers.
        neutral: ``[U]`` fp32, the same under a neutral question.
        shown: how many of the tokens the answer's text is made of: none that ends it, nor those of a stop string.
    """

    contents: Contents
    units: Units
    weights: Tensor
    neutral: Tensor
    shown: int

    def passages(self, token: int | None = None) -> tuple[Passage, ...]:
        """The passages of one token of the answer, or of all: up to ``MOST`` sentences, the highest lift first.

        Sentences that follow one another are one passage. None has a lift below 1.
        """
        share = self._share(token)
        lift = self.lifts(token)
        best = lift.topk(min(MOST, len(lift))).indices
        found = self._passages(best[lift[best] > 1], share, lift)
        return tuple(sorted(found, key=lambda one: -one.lift))

    def heaviest(self) -> tuple[Passage, ...]:
        """The passages with the most of the whole answer's attention, the highest share first, whatever their lift."""
        share = self._share(None)
        found = self._passages(share.topk(min(MOST, len(share))).indices, share, self.lifts())
        return tuple(sorted(found, key=lambda one: -one.share))

    def lifts(self, token: int | None = None) -> Tensor:
        """``[U]`` fp32, how many times as much each unit was attended to as under a neutral question; see ``passages``.

        ``(w_u + m) / (n_u + m)`` with weights ``w`` and, under the neutral question, ``n`` and their mean ``m``: what
        has next to no weight has no large ratio.
        """
        mean = self.neutral.mean().clamp(min=1e-9)
        return (self._share(token) + mean) / (self.neutral + mean)

    def _share(self, token: int | None) -> Tensor:
        return self.weights[token] if token is not None else self.weights[: max(self.shown, 1)].mean(dim=0)

    def _passages(self, units: Tensor, share: Tensor, lift: Tensor) -> list[Passage]:
        runs = _runs(sorted(units.tolist()), self.units.sources)
        return [self._passage(first, last, share, lift) for first, last in runs]

    def _passage(self, first: int, last: int, share: Tensor, lift: Tensor) -> Passage:
        source = self.contents.sources[int(self.units.sources[first])]
        begin, end = int(self.units.places[first, 0]), int(self.units.places[last, 1])
        text = None if self.contents.text is None else self.contents.text[begin:end]
        own = slice(first, last + 1)
        place = begin - source.start, end - source.start
        return Passage(text, *place, source.name, begin, float(share[own].sum()), float(lift[own].max()))


@torch.inference_mode()
def weigh(
    model: PreTrainedModel,
    attachment: Attachment,
    cache: LongspanCache,
    prompt: Tensor,
    answer: Tensor,
    units: Units,
    rows: int = 1,
) -> Tensor:
    """The weights of the units for the last ``rows`` tokens of a prompt and for the tokens that were written after it.

    Tokens that choose together with others of their call, or see other positions, come one by one, as they were
    written.

    Args:
        cache: holds the first tokens of the text that ``prompt`` ``[T]`` goes on.
        answer: ``[A]``, the tokens that were written and read again.

    Returns:
        ``[rows + A, U]`` fp32.
    """
    method = attachment.attender.method
    if len(prompt) > rows:
        forward(model, prompt[:-rows], cache)
    if method.call_dependent or method.length_dependent:
        calls = [prompt[-rows:], *answer.split(1)] if len(answer) else [prompt[-rows:]]
    else:
        calls = [torch.cat((prompt[-rows:], answer))]
    weights, found = GroupWeights(attachment.attender, units.of, len(units)), []
    with attachment.attended_by(weights):
        for ids in calls:
            forward(model, ids, cache)
            found.append(weights.take())
    return torch.cat(found)


def _runs(units: Sequence[int], sources: Tensor) -> list[tuple[int, int]]:
    """The first and last of units that follow one another in one source."""
    if not units:
        return []
    breaks = [n for n, (a, b) in enumerate(pairwise(units), 1) if b != a + 1 or sources[a] != sources[b]]
    edges = [0, *breaks, len(units)]
    return [(units[a], units[b - 1]) for a, b in pairwise(edges)]
