"""How many tokens are drafted: by how often drafts were accepted, and what forwards took."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 15  # tokens; with the one before them 16, which packed weights multiply as they multiply one
_TRIED = 4.0  # tokens that a kind counts as tried before any is
_ACCEPTED = {"2": 0.4, "3": 0.6, "4": 0.75, "8": 0.9}  # the first share of those, by the tokens alike
_KEEP = 0.95  # of a count at the next verification
_RECALL = 0.01  # of the first count comes back when a proposal is not tried, so that it is again one day
_FIRST, _LOST = 0.5, 0.02  # plain forwards, and of an answer's time, that drafts may have cost it


@dataclass
class _Count:
    """Drafted tokens of a kind: how many were reached, and how many of these accepted."""

    tried: float
    accepted: float

    @classmethod
    def first(cls, kind: str) -> _Count:
        return cls(_TRIED, _ACCEPTED.get(kind.split()[0], 0.8) * _TRIED)

    @property
    def share(self) -> float:
        return self.accepted / self.tried


class Record:
    """What a model's drafts were worth so far, over all answers.

    The seconds of a forward over those of one without drafts are a line in its drafted tokens.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        self._guessed = _sums(1, 1.15), _sums(MOST, 2.2)  # two forwards that nobody measured
        self._measured = [0.0] * 5
        self.longest = 1  # draft that was measured

    def cost(self, drafted: int) -> float:
        """The seconds of a forward with so many drafted tokens, over those of one without."""
        w, n, nn, y, ny = (sum(own) for own in zip(self._measured, *self._guessed, strict=True))
        slope = max((w * ny - n * y) / (w * nn - n * n), 0.0)
        return max((y - slope * n) / w + slope * drafted, 1.0)

    def took(self, drafted: int, cost: float) -> None:
        """A forward with drafted tokens had this cost."""
        self.longest = max(self.longest, drafted)
        new = _sums(drafted, cost)
        self._measured = [_KEEP * x + more for x, more in zip(self._measured, new, strict=True)]

    def share(self, kind: str) -> float:
        """The share of drafted tokens of a kind that are accepted if the one before is."""
        return self._count(kind).share

    def accepted(self, kind: str, reached: int, accepted: int) -> None:
        """So many of a kind were reached, and so many of these accepted."""
        count = self._count(kind)
        count.tried, count.accepted = _KEEP * count.tried + reached, _KEEP * count.accepted + accepted

    def passed_over(self, kind: str) -> None:
        """A proposal of this kind was not tried."""
        count, first = self._count(kind), _Count.first(kind)
        count.tried += _RECALL * (first.tried - count.tried)
        count.accepted += _RECALL * (first.accepted - count.accepted)

    def _count(self, kind: str) -> _Count:
        return self._counts.setdefault(kind, _Count.first(kind))


class DraftLengths:
    """The lengths of one answer's drafts.

    A length is the one with the most tokens a second expected, of those that the answer can afford to lose whole:
    drafts may cost it half a token's time, 2% of its own, and what they have won. Nothing is drafted if no length has
    more tokens a second than a forward without drafts.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._plain = self._elapsed = self._lost = 0.0

    @property
    def affords(self) -> bool:
        """Whether any draft may be verified, so that one is worth looking for."""
        return bool(self._plain) and self._record.cost(1) <= self._most_cost

    @property
    def _most_cost(self) -> float:
        return 1 + _FIRST + (_LOST * self._elapsed - self._lost) / self._plain

    def length(self, kind: str, most: int) -> int:
        """How many tokens of a proposal of ``most`` tokens to verify, 0 for none."""
        record = self._record
        if not self._plain or most < 1:
            return 0
        most = min(most, MOST, 2 * record.longest + 1)  # nobody knows yet what much longer ones cost
        afford = self._most_cost
        share, reached, expected, best, length = record.share(kind), 1.0, 1.0, 1.0, 0
        for n in range(1, most + 1):
            cost, reached = record.cost(n), reached * share
            expected += reached
            if cost <= afford and expected / cost > best:
                best, length = expected / cost, n
        if not length:
            record.passed_over(kind)
        return length

    def looked(self, seconds: float) -> None:
        """The search for a draft took so long."""
        self._elapsed += seconds
        self._lost += seconds

    def took(self, drafted: int, seconds: float) -> None:
        """A forward with so many drafted tokens took so long."""
        self._elapsed += seconds
        if drafted:
            self._lost += seconds - self._plain
            self._record.took(drafted, seconds / self._plain)
        else:  # a pause of the machine is no property of the model
            self._plain += 0.2 * (min(seconds, 2 * self._plain) - self._plain) if self._plain else seconds

    def accepted(self, kind: str, drafted: int, accepted: int, *, ended: bool) -> None:
        """Of drafted tokens so many were accepted; the next one was not, unless the answer ``ended`` before."""
        self._lost -= accepted * self._plain
        self._record.accepted(kind, accepted + (accepted < drafted and not ended), accepted)


def _sums(n: int, cost: float) -> tuple[float, ...]:
    return 1.0, n, n * n, cost, n * cost
