"""The parts of a document that passages are made of: its sentences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.documents.contents import Contents
from longspan.text.sentences import sentences

MOST = 4096  # units of a document; of a longer one several sentences are one unit
_BLIND = 32  # tokens of a unit if the text was not kept


@dataclass(frozen=True)
class Units:
    """Parts of a text, in order.

    Attributes:
        places: ``[U, 2]`` int64, the characters of each, ``[first, last)``.
        sources: ``[U]`` int64, the number of the source that each lies in; -1 for none.
        of: ``[T]`` int64, the unit of each token; -1 for tokens that are not of the text.
    """

    places: Tensor
    sources: Tensor
    of: Tensor

    def __len__(self) -> int:
        return len(self.places)


def units_of(contents: Contents) -> Units:
    """The sentences of a document; runs of tokens if its text was not kept. A unit lies in one source."""
    places, text = contents.places, contents.text
    of = torch.full((len(places),), -1, dtype=torch.int64)
    spans, numbers = list[tuple[int, int]](), list[int]()
    for number, one in enumerate(contents.sources):
        inside = ((places[:, 0] >= one.start) & (places[:, 1] <= one.stop)).nonzero()[:, 0]
        own = places[inside]
        if text is None:
            found = [(int(run[:, 0].min()), int(run[:, 1].max())) for run in own.split(_BLIND) if len(run)]
            of[inside] = len(spans) + torch.arange(len(inside)) // _BLIND
        else:
            found = [(one.start + first, one.start + last) for first, last in sentences(text[one.start : one.stop])]
            starts = torch.tensor([first for first, _ in found], dtype=torch.int64)
            # A token with the space before its word is of that word's sentence.
            within = torch.searchsorted(starts, own[:, 1].contiguous() - 1, right=True) - 1
            of[inside] = torch.where(within >= 0, len(spans) + within, -1)
        spans += found
        numbers += [number] * len(found)
    return _fewer(
        Units(torch.tensor(spans, dtype=torch.int64).view(-1, 2), torch.tensor(numbers, dtype=torch.int64), of)
    )


def _fewer(units: Units) -> Units:
    """At most about ``MOST`` units: several that follow one another in a source as one."""
    size = -(-len(units) // MOST)
    if size <= 1:
        return units
    first = torch.ones(len(units), dtype=torch.bool)
    first[1:] = units.sources[1:] != units.sources[:-1]
    begins = first.nonzero()[:, 0]
    rank = torch.arange(len(units)) - begins[first.cumsum(0) - 1]  # within its source
    group = (first | (rank % size == 0)).cumsum(0) - 1
    heads = torch.searchsorted(group, torch.arange(int(group[-1]) + 1))
    tails = torch.cat((heads[1:], torch.tensor([len(units)]))) - 1
    places = torch.stack((units.places[heads, 0], units.places[tails, 1]), dim=1)
    return Units(places, units.sources[heads], torch.where(units.of >= 0, group[units.of], -1))
