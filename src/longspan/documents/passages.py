"""The parts of a text that the heads looked at while an answer was written. They are no proof of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from longspan.attend import Choice
from longspan.documents.contents import Contents


@dataclass(frozen=True)
class Passage:
    """A part of the text.

    Attributes:
        start, stop: its tokens, ``[start, stop)``, counted from the document's first one.
        text: its characters, those in ``source``; None if the text was not kept.
        first, last: the places of these characters in ``source``, ``[first, last)``.
        source: the file or name of the text that the part begins in.
        chosen: how often it was chosen, over all heads, layers and tokens of the answer.
        share: that, of how often it could have been.
    """

    start: int
    stop: int
    text: str | None
    first: int
    last: int
    source: str
    chosen: int
    share: float


Range = tuple[int, int]


def looked_at(choices: Iterable[Choice], grain: int) -> tuple[Counter[Range], int]:
    """How often each range of tokens was chosen, and how often something was.

    Args:
        choices: of one answer, or of one token of it.
        grain: tokens of a range if the method chooses smaller units; else the units themselves are the ranges.
    """
    counts: Counter[Range] = Counter()
    votes = 0
    for choice in choices:
        votes += choice.units.shape[0]
        for units in choice.units.tolist():  # of one head, group or layer, which looks at a range or does not
            begins = {choice.origin + unit * choice.size for unit in units}
            if choice.size >= grain:
                counts.update((a, a + choice.size) for a in begins)
            else:
                counts.update((n * grain, (n + 1) * grain) for n in {a // grain for a in begins})
    return counts, votes


def passages_of(choices: Iterable[Choice], contents: Contents, grain: int) -> tuple[Passage, ...]:
    """The parts of the text that were looked at, the most often chosen first; see ``looked_at``."""
    return ranked(*looked_at(choices, grain), contents)


def ranked(counts: Counter[Range], votes: int, contents: Contents) -> tuple[Passage, ...]:
    """``passages_of`` choices that ``looked_at`` has counted."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    passages = (_passage(contents, *tokens, count, votes) for tokens, count in ordered)
    return tuple(one for one in passages if one is not None)


def _passage(contents: Contents, start: int, stop: int, count: int, votes: int) -> Passage | None:
    stop = min(stop, contents.length)
    places = contents.places[start:stop]
    places = places[places[:, 0] >= 0]
    if not len(places):  # of what stands around the text alone
        return None
    first, last = int(places[:, 0].min()), int(places[:, 1].max())
    own = (s for s in contents.sources if max(first, s.start) < s.stop)  # an empty text has no passages
    source, begin, end = next(((s.name, s.start, s.stop) for s in own), ("", 0, last))
    first, last = max(first, begin), min(last, end)  # the joint of two texts is of neither
    if first >= last:
        return None
    text = None if contents.text is None else contents.text[first:last]
    return Passage(start, stop, text, first - begin, last - begin, source, count, count / max(votes, 1))
