"""What a method is: a selection, a position map and angles, and the defaults that follow a model's window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from longspan.bands import Band, KeyMap
from longspan.errors import MOST, AttachError, CalibrationError, check_count, check_number, whole
from longspan.positions import PositionMap, SeesChosen
from longspan.rope import Angles
from longspan.selection import Choosing, Selection

if TYPE_CHECKING:
    from typing import Self

    from longspan.calibration import Calibration


def require(rule: str, holds: bool, **values: Any) -> None:
    """Raise ``ValueError`` naming the rule and the values that break it, unless it holds."""
    if not holds:
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        raise ValueError(f"{rule} is broken by {given}")


class LayerFacts(Protocol):
    """What a method may ask of a model's layer; ``norms`` is true where keys are normalised once rotated."""

    name: str
    index: int
    key_dim: int
    value_dim: int
    norms: Any


@dataclass(frozen=True, kw_only=True)
class Method:
    """A long-context method. Subclasses are frozen dataclasses whose fields are the paper's parameters.

    A field left at None takes its default from the model's window when the method is resolved. ``selection`` and
    ``positions`` are those of a resolved method.

    Attributes:
        name, paper: what it is called, and where it is from.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    angles: Angles = field(default_factory=Angles)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if str(f.type).startswith("int") and (value is not None or f.type == "int"):
                found = whole(value)
                if found is None:
                    raise ValueError(f"{type(self).__name__}: {f.name} is a whole number, not {value!r}")
                object.__setattr__(self, f.name, found)  # frozen for everybody else
                value = found
            if type(value) is int and abs(value) > MOST:
                raise ValueError(f"{type(self).__name__}: {f.name} is at most {MOST:,}, not {value}")
            if str(f.type).startswith("float") and value is not None:
                object.__setattr__(self, f.name, check_number(f"{type(self).__name__}: {f.name}", value))
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
        window = check_count("window", window)
        missing = {name: value for name, value in self.defaults(window).items() if getattr(self, name) is None}
        resolved = replace(self, **missing, angles=self.angles.resolve(window))
        resolved.check_window(window)
        resolved.check_reach(window)
        return resolved

    def check_reach(self, window: int) -> None:
        """Raise ``ValueError`` unless what is chosen is seen from positions that the model was trained on."""
        selection, positions = self.selection(window), self.positions(window)
        if self.selects != isinstance(selection, Choosing):
            raise TypeError(
                f"{type(self).__name__}: selects is {self.selects} and its selection {type(selection).__name__} "
                f"{'chooses' if isinstance(selection, Choosing) else 'does not choose'}; set selects to say so"
            )
        if not self.selects:
            return
        reach, name = positions.reach(selection.always()), f"{type(self).__name__}: {type(positions).__name__}"
        if reach is None:
            raise ValueError(f"{name} sees no keys that were chosen; take a map that does, such as FarNear or InOrder")
        require(f"{name} sees chosen keys from positions < window", 0 <= reach < window, position=reach, window=window)

    def reaching(self, length: int) -> Self:
        """The same method, told to reach ``length`` tokens where it has to know and was not told."""
        return replace(self, angles=self.angles.reaching(length))

    def prescribed(self, *, chunk_size: int | None, local_window: int | None, window: int | None) -> Self:
        """The same method with the dual chunks that a model's config prescribes; for methods that have such."""
        return self

    def selection(self, window: int) -> Selection:
        """Axis 1, for a model of this window: which keys a query attends to."""
        raise NotImplementedError

    def positions(self, window: int) -> PositionMap:
        """Axis 2, for a model of this window: at which relative position it sees them."""
        raise NotImplementedError

    @property
    def selects(self) -> bool:
        """Whether its selection chooses keys by looking at them, which takes a ``Choosing`` one."""
        return False

    @property
    def follows_pieces(self) -> bool:
        """Whether what a row attends to depends on the rows that arrive with it; then decoding is not as prefill."""
        return False

    def bands(self, window: int, first: int = 0, stop: int | None = None) -> tuple[Band, ...]:
        """The bands that tile what the queries ``first : stop``, which arrive together, keep whatever they choose."""
        stop = window + 1 if stop is None else stop
        return self.positions(window).all_bands(self.selection(window).kept(first, stop))

    def key_maps(self, window: int) -> tuple[KeyMap, ...]:
        """The stored rotations of the keys: those of the bands, then those that chosen and scored keys are read in."""
        maps = [band.k_pos for band in self.bands(window)]
        if self.selects:
            selection, positions = cast(Choosing, self.selection(window)), cast(SeesChosen, self.positions(window))
            maps.append(positions.chosen_keys(selection.always()))
            maps += [] if selection.scored_keys is None else [selection.scored_keys]
        return tuple(dict.fromkeys(maps))

    def angles_at(self, window: int, tokens: int, total: int) -> int:
        """The length that dynamic angles follow in a call of ``tokens`` tokens, the last of ``total``."""
        return total

    def check_layers(self, window: int, layers: Sequence[LayerFacts]) -> None:
        """Raise ``AttachError`` if this resolved method cannot run in the layers it would be attached to."""
        if not self.selects or not layers:
            return
        selection, positions = cast(Choosing, self.selection(window)), cast(SeesChosen, self.positions(window))
        if not any(selection.chooses_in(layer.index) for layer in layers):
            raise AttachError(
                f"{self.name} would choose keys in none of this model's layers, the last of which is number "
                f"{layers[-1].index}; give a smaller from_layer"
            )
        for layer in layers:
            if layer.norms and positions.turns_gathered and selection.together:
                raise AttachError(
                    f"{layer.name}: keys are normalised after their rotation, and {self.name} with remap='slots' "
                    "would turn them once more; use remap='far'"
                )

    @property
    def uses_calibration(self) -> bool:
        """Whether its scores can be those of reduced queries and keys."""
        return False

    def check_calibration(self, calibration: Calibration | None) -> None:
        """Raise ``CalibrationError`` unless a calibration is there where one is asked for, fits, and will be used."""
        if calibration is not None and not self.uses_calibration:
            raise CalibrationError(
                f"{self.name} has no use for a calibration (esa has, and longheads with score='token_max'); leave "
                "calibration out"
            )

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

    def warnings(self, window: int) -> list[str]:
        """What the user should know about these parameters at this window."""
        return []

    def parameters(self) -> dict[str, Any]:
        """Every parameter with its value, the angles' last."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "angles"}
        return {**own, "angles": self.angles}
