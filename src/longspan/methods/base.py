"""What a method is: a selection, a position map and angles, and the defaults that follow a model's window."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from longspan.bands import Band, compose
from longspan.errors import MOST, check_count, check_number
from longspan.positions import PositionMap
from longspan.rope import Angles
from longspan.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


def require(rule: str, holds: bool, **values: Any) -> None:
    """Raise ``ValueError`` naming the rule and the values that break it, unless it holds."""
    if not holds:
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        raise ValueError(f"{rule} is broken by {given}")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A long-context method. Subclasses are frozen dataclasses whose fields are the paper's parameters.

    A field left at None takes its default from the model's window when the method is resolved. ``keep`` and ``rel``
    are only meaningful on a resolved method.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    angles: Angles = field(default_factory=Angles)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if str(f.type).startswith("int") and type(value) is not int and (value is not None or f.type == "int"):
                raise ValueError(f"{type(self).__name__}: {f.name} is a whole number, not {value!r}")
            if type(value) is int and abs(value) > MOST:
                raise ValueError(f"{type(self).__name__}: {f.name} is at most {MOST:,}, not {value}")
            if str(f.type).startswith("float") and value is not None:
                check_number(f"{type(self).__name__}: {f.name}", value)
            if f.type == "bool" and type(value) is not bool:
                raise ValueError(f"{type(self).__name__}: {f.name} is True or False, not {value!r}")
        if not isinstance(self.angles, Angles):
            raise ValueError(f"{type(self).__name__}: angles are Angles such as YaRN(factor=4), not {self.angles!r}")
        self.check()

    def check(self) -> None:
        """Raise ``ValueError`` if the parameters given so far cannot be; called at construction."""

    def defaults(self, window: int) -> dict[str, Any]:
        """The default of each field that was left at None, for a model of this window."""
        return {}

    def check_window(self, window: int) -> None:
        """Raise ``ValueError`` if the resolved parameters do not fit this window."""

    def resolve(self, window: int) -> Self:
        """The same method with every parameter filled in for a model trained on ``window`` tokens."""
        check_count("window", window)
        missing = {name: value for name, value in self.defaults(window).items() if getattr(self, name) is None}
        resolved = replace(self, **missing, angles=self.angles.resolve(window))
        resolved.check_window(window)
        return resolved

    def reaching(self, length: int) -> Self:
        """The same method, told to reach ``length`` tokens where it has to know and was not told."""
        return replace(self, angles=self.angles.reaching(length))

    @property
    def selection(self) -> Selection:
        raise NotImplementedError

    @property
    def positions(self) -> PositionMap:
        raise NotImplementedError

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether query ``i`` attends to key ``j`` (bool, broadcast)."""
        return self.selection.keep(i, j) & (j <= i)

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        """The relative position at which query ``i`` sees key ``j`` (int64, broadcast)."""
        return self.positions.rel(i, j)

    def bands(self) -> tuple[Band, ...]:
        """The bands that tile the kept keys."""
        return compose(self.selection.intervals(), self.positions.bands())

    def query_factor(self, window: int, total: int) -> float:
        """What the rotated queries are multiplied by at a total length of ``total`` tokens."""
        return 1.0

    def plain_rows(self, window: int) -> int:
        """How many first rows keep every key at its true distance."""
        raise NotImplementedError

    def exact_rows(self, window: int, total: int) -> int:
        """How many first rows of an input of ``total`` tokens equal the stock model, whatever follows them."""
        exact = self.angles.exact(window, total) and self.query_factor(window, total) == 1.0
        return self.plain_rows(window) if exact else 0

    @property
    def follows_total(self) -> bool:
        """Whether rotation depends on the total length at the call, which exempts decoding from equalling prefill."""
        return self.angles.dynamic

    @property
    def follows_pieces(self) -> bool:
        """Whether what a row attends to depends on the rows that arrive with it, which exempts it likewise."""
        return False

    @property
    def selects(self) -> bool:
        """Whether it chooses keys by looking at them, which takes a ``Selecting`` method."""
        return False

    def warnings(self, window: int) -> list[str]:
        """What the user should know about these parameters at this window."""
        return []

    def parameters(self) -> dict[str, Any]:
        """Every parameter with its value, the angles' last."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "angles"}
        return {**own, "angles": self.angles}
