"""The base class of methods: a selection, a position map, angles, and defaults that depend on the window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast, get_args

from longspan.bands import Band, KeyMap
from longspan.choosing.base import Choosing
from longspan.errors import (
    MOST,
    AttachError,
    CalibrationError,
    LongspanError,
    MethodError,
    check_count,
    check_number,
    whole,
)
from longspan.positions import ChosenPositionMap, PositionMap
from longspan.rope import Angles
from longspan.selection import Selection
from longspan.terms import head_sets

if TYPE_CHECKING:
    from longspan.calibration import Calibration


def require(rule: str, holds: bool, **values: Any) -> None:
    """Raise ``ValueError`` with the rule and the values that break it, unless ``holds``."""
    if not holds:
        listed = ", ".join(f"{name}={value}" for name, value in values.items())
        raise LongspanError(f"{rule} is broken by {listed}")


def resolved(value: int | None) -> int:
    """A parameter that is None until ``Method.resolve`` sets it."""
    assert value is not None
    return value


class LayerFacts(Protocol):
    """The facts of a model's layer that a method checks.

    Attributes:
        index: of the layer in the cache.
        key_dim, value_dim: ``D`` and ``Dv``.
        norms: true if the layer normalises keys after their rotation.
    """

    name: str
    index: int
    key_dim: int
    value_dim: int
    norms: Any


@dataclass(frozen=True, kw_only=True)
class Method:
    """A long-context method. Subclasses are frozen dataclasses whose fields are the paper's parameters.

    ``resolve(window)`` replaces each field that is None by its default for that window. ``selection`` and
    ``positions`` require a resolved method; they read such fields by ``resolved(self.…)``.

    Attributes:
        name: the method's name on the command line and in ``METHODS``.
        paper: authors, year and address of the paper.
        title: the method's name in errors about its parameters; by default the name of its class.
        least: the smallest valid value of a parameter, by name.
        words: the ``Literal`` with the valid words of a parameter, by name.
        extends: false for the stock attention, which sets no limit to a text and extends no window.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    title: ClassVar[str] = ""
    least: ClassVar[Mapping[str, int]] = {}
    words: ClassVar[Mapping[str, Any]] = {}
    extends: ClassVar[bool] = True
    angles: Angles = field(default_factory=Angles)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if str(f.type).startswith("int") and (value is not None or f.type == "int"):
                number = whole(value)
                if number is None:
                    raise LongspanError(f"{type(self).__name__}: {f.name} must be an integer, not {value!r}")
                object.__setattr__(self, f.name, number)  # the dataclass is frozen
                value = number
            if type(value) is int and abs(value) > MOST:
                raise LongspanError(f"{type(self).__name__}: {f.name} must be at most {MOST:,}, not {value}")
            if str(f.type).startswith("float") and value is not None:
                object.__setattr__(self, f.name, check_number(f"{type(self).__name__}: {f.name}", value))
            if f.type == "bool" and type(value) is not bool:
                raise LongspanError(f"{type(self).__name__}: {f.name} must be True or False, not {value!r}")
            if f.name in self.least and value is not None:
                self.require(f"{f.name} ≥ {self.least[f.name]}", value >= self.least[f.name], f.name)
            if f.name in self.words:
                words = get_args(self.words[f.name])
                self.require(f"{f.name} is one of {', '.join(words)}", value in words, f.name)
        if not isinstance(self.angles, Angles):
            raise LongspanError(
                f"{type(self).__name__}: angles must be an instance of Angles, for example YaRN(factor=4), not "
                f"{self.angles!r}"
            )
        self.check()

    def require(self, rule: str, holds: bool, *fields: str, **values: Any) -> None:
        """``require`` with the title before the rule; the values are those of ``fields``, then ``values``."""
        title = self.title or type(self).__name__
        require(f"{title}: {rule}", holds, **{name: getattr(self, name) for name in fields}, **values)

    def check(self) -> None:
        """Raise ``ValueError`` if the parameters are invalid for every window.

        Called at construction, and so by ``resolve`` with all parameters set; ``least`` and ``words`` hold then.
        """

    def defaults(self, window: int) -> dict[str, Any]:
        """The default of each field that may be None, for a model trained on ``window`` tokens."""
        return {}

    def check_window(self, window: int) -> None:
        """Raise ``ValueError`` if the resolved parameters do not fit this window."""

    def resolve(self, window: int) -> Self:
        """A copy with all parameters set, for a model trained on ``window`` tokens.

        Raises:
            ValueError: the parameters do not fit this window.
        """
        window = check_count("window", window)
        missing = {name: value for name, value in self.defaults(window).items() if getattr(self, name) is None}
        method = replace(self, **missing, angles=self.angles.resolve(window))
        method.check_window(window)
        method.check_reach(window)
        return method

    def check_reach(self, window: int) -> None:
        """Raise ``ValueError`` if the position map puts chosen keys outside the trained window."""
        selection = self.selection(window)
        if self.selects != isinstance(selection, Choosing):
            raise MethodError(
                f"{type(self).__name__}: selects is {self.selects}, but its selection {type(selection).__name__} "
                f"{'chooses keys' if isinstance(selection, Choosing) else 'chooses no keys'}; set selects = "
                f"{not self.selects}"
            )
        if (axes := self.choosing(window)) is None:
            return
        chosen, seen = axes
        reach, name = seen.reach(chosen.always()), f"{type(self).__name__}: {type(seen).__name__}"
        if reach is None:
            raise LongspanError(f"{name} has no positions for the keys that {type(chosen).__name__} chooses")
        require(f"{name} sees chosen keys from positions < window", 0 <= reach < window, position=reach, window=window)

    def reaching(self, length: int) -> Self:
        """A copy for texts of ``length`` tokens; sets the target length of methods and angles that lack one."""
        return replace(self, angles=self.angles.reaching(length))

    def prescribed(
        self, *, chunk_size: int | None, local_window: int | None, window: int | None, length_scale: float | None
    ) -> Self:
        """A copy with the dual chunks of a model's config; methods without dual chunks return themselves."""
        return self

    def selection(self, window: int) -> Selection:
        """Axis 1: the keys that a query attends to, for a model trained on ``window`` tokens."""
        raise NotImplementedError

    def positions(self, window: int) -> PositionMap:
        """Axis 2: the relative position of each kept key, for a model trained on ``window`` tokens."""
        raise NotImplementedError

    @property
    def selects(self) -> bool:
        """Whether the selection depends on the values of the keys; then it is a ``Choosing``.

        This repeats the type of ``selection``, which needs a window and torch; the list of methods needs neither.
        ``check_reach`` compares the two.
        """
        return False

    def choosing(self, window: int) -> tuple[Choosing, ChosenPositionMap] | None:
        """Both axes of a method that chooses keys by their content; None for any other method.

        Raises:
            ValueError: the position map has no positions for chosen keys.
        """
        selection, positions = self.selection(window), self.positions(window)
        if not isinstance(selection, Choosing):
            return None
        if not isinstance(positions, ChosenPositionMap):
            maps = "FarPosition, InOrder, Chunked, CappedOrFar or a ChosenPositionMap of your own"
            name = f"{type(self).__name__}: {type(positions).__name__}"
            raise LongspanError(f"{name} has no positions for chosen keys; use a map that has them: {maps}")
        return selection, positions

    @property
    def call_dependent(self) -> bool:
        """Whether the keys of a query depend on the other queries of its call; then decoding differs from prefill."""
        return False

    def first_changed(self, window: int, start: int, stop: int, length: int, dense: bool = False) -> int:
        """The first query of the call ``start : stop`` that would be computed otherwise had it ended at ``length``.

        It is ``length`` if no query before that depends on those after it.

        Args:
            dense: as of ``Selection.first_together``: another call may begin there and changes nothing.
        """
        if self.length_dependent and not self._exact(window, stop):
            return start
        return self.selection(window).first_together(start, length, dense) if self.call_dependent else length

    def bands(self, window: int, first: int = 0, stop: int | None = None) -> tuple[Band, ...]:
        """The bands of the keys that the queries ``first : stop`` of one call keep without a choice."""
        stop = window + 1 if stop is None else stop
        return self.positions(window).all_bands(self.selection(window).kept(first, stop))

    def key_maps(self, window: int) -> tuple[KeyMap, ...]:
        """The rotations in which keys are stored: those of the bands, then of chosen keys, then of scored keys."""
        maps = [band.k_pos for band in self.bands(window)]
        if (axes := self.choosing(window)) is not None:
            selection, positions = axes
            maps.append(positions.chosen_keys(selection.always()))
            maps += [] if selection.scored_keys is None else [selection.scored_keys]
        return tuple(dict.fromkeys(maps))

    def stored_rotations(self, window: int) -> int:
        """How many rotations of each key a cache holds; angles that follow the length keep one, unrotated."""
        return 1 if self.angles.dynamic else len(self.key_maps(window))

    def angles_at(self, window: int, tokens: int, total: int) -> int:
        """The text length that sets dynamic angles, for a call with the last ``tokens`` of ``total`` tokens."""
        return total

    def check_layers(self, window: int, layers: Sequence[LayerFacts]) -> None:
        """Raise ``AttachError`` if this resolved method cannot run in ``layers``."""
        if not layers or (axes := self.choosing(window)) is None:
            return
        selection, positions = axes
        if not any(selection.chooses_in(layer.index) for layer in layers):
            raise AttachError(
                f"{self.name} chooses keys in no layer of this model, whose last layer is {layers[-1].index}; pass a "
                "smaller from_layer"
            )
        for layer in layers:
            if layer.norms and positions.rotates_gathered and selection.by_query_chunk:
                raise AttachError(
                    f"{layer.name}: this layer normalises keys after their rotation, and {self.name} would rotate them "
                    f"a second time; {positions.rotation_remedy}"
                )

    @property
    def uses_calibration(self) -> bool:
        """Whether scores can use reduced queries and keys."""
        return False

    def check_calibration(self, calibration: Calibration | None) -> None:
        """Raise ``CalibrationError`` if a calibration is required but missing, does not fit, or would be unused."""
        if calibration is not None and not self.uses_calibration:
            raise CalibrationError(
                f"{self.name} does not use a calibration (esa does, and longheads with score='token_max'); leave "
                "calibration out"
            )

    def query_factor(self, window: int, total: int) -> float:
        """The factor on rotated queries at a text length of ``total`` tokens."""
        return 1.0

    def plain_queries(self, window: int) -> int:
        """How many first queries of a text keep every key at its true distance."""
        raise NotImplementedError

    def exact_queries(self, window: int, total: int) -> int:
        """How many first queries of a text of ``total`` tokens equal the stock model, for any text after them."""
        return self.plain_queries(window) if self._exact(window, total) else 0

    def _exact(self, window: int, total: int) -> bool:
        """Whether a text of ``total`` tokens is rotated as by the stock model."""
        return self.angles.exact(window, total) and self.query_factor(window, total) == 1.0

    def longest(self, window: int) -> int | None:
        """The longest text in tokens that the resolved parameters are set for; None if they set no limit.

        Longer texts leave the positions that the model was trained on.
        """
        return None

    def heads_hold(self, window: int, layers: Iterable[tuple[int, int, int]]) -> int | None:
        """The tokens that the heads of all layers keep together at one query if no two choose the same.

        That is ``|P| · heads · layers`` (LongHeads, section 4.1); heads that choose together are one. No query sees
        all of a longer text. None if no head chooses.

        Args:
            layers: the index, the query heads and the key heads of each layer with this method.
        """
        if (axes := self.choosing(window)) is None:
            return None
        selection = axes[0]
        each = (head_sets(selection.share, heads, kv) for n, heads, kv in layers if selection.chooses_in(n))
        return cast(int, selection.budget) * sum(each)

    @property
    def length_dependent(self) -> bool:
        """Whether the rotation depends on the text length of a call; then decoding may differ from prefill."""
        return self.angles.dynamic

    def warnings(self, window: int) -> list[str]:
        """Notes for the user about these parameters at this window."""
        return []

    def parameters(self) -> dict[str, Any]:
        """All parameters by name; ``angles`` comes last."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "angles"}
        return {**values, "angles": self.angles}
