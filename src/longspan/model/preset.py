"""Presets: a method and a declared window that were found good on one model, in a file that ``extend`` takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from longspan.errors import LongspanError, check_count
from longspan.methods import Method
from longspan.methods.parse import parse_method

ENDING = ".json"
FORMAT = "longspan preset 1"
SHIPPED = Path(__file__).parent / "presets"  # of the models that `longspan fetch` knows, each by its short name
_SHAPE = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads",
)  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """The model that a preset is of.

    Attributes:
        name: what it is called; another name of the same shape and window is the same model.
        window: in tokens, as its config states it.
        shape: what its config says of its architecture.
    """

    name: str
    window: int | None
    shape: Mapping[str, Any]

    @classmethod
    def of(cls, config: Any, name: str, window: int | None) -> Identity:
        """That of a model with the config of a decoder; ``window`` as the config states it."""
        found = {key: getattr(config, key, None) for key in _SHAPE}
        found["rope_theta"] = (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
        return cls(name, window, {key: value for key, value in found.items() if value is not None})

    def differences(self, other: Identity) -> list[str]:
        """In what another model differs from this one, in words."""
        ours, theirs = ({**one.shape, "window": one.window} for one in (self, other))
        keys = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
        return [f"its {key} is {theirs.get(key)}, not {ours.get(key)}" for key in keys]


@dataclass(frozen=True)
class Preset:
    """How to run a model at a length, and what says so.

    Attributes:
        spec: the method, as ``extend`` takes it.
        window: the window to declare, in tokens; None keeps the model's own.
        length: of text and answer, in tokens, that it was found at.
        model: that it was found on.
        evidence: what was measured.
        source: the file, for errors.
    """

    spec: str
    window: int | None
    length: int
    model: Identity
    evidence: Mapping[str, Any]
    source: str = field(default="", compare=False)

    @cached_property
    def method(self) -> Method:
        """The method, not yet told a window or a length."""
        return parse_method(self.spec)

    @classmethod
    def read(cls, path: str | Path) -> Preset:
        """Read a file that ``longspan tune`` wrote.

        Raises:
            LongspanError: it is not there, or no preset.
        """
        try:
            body = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise LongspanError(f"{path}: {error.strerror or error}; a name in {ENDING} is a preset's file") from error
        except (ValueError, RecursionError) as error:
            raise LongspanError(f"{path}: is no preset: it is not valid JSON ({error})") from error
        try:
            if body["format"] != FORMAT:
                raise ValueError(f"its format is {body['format']!r}, and this longspan reads {FORMAT!r}")
            model = Identity(**{one.name: body["model"][one.name] for one in fields(Identity)})
            window = None if body["window"] is None else check_count("window", body["window"])
            length = check_count("length", body["length"])
            preset = cls(body["method"], window, length, model, dict(body["evidence"]), str(path))
            preset.model.shape.keys()
            preset.method  # noqa: B018 - parsed here, so that an error names the file
        except KeyError as error:
            raise LongspanError(f"{path}: is no preset: it has no {error}; `longspan tune` writes one") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise LongspanError(f"{path}: is no preset: {error}; `longspan tune` writes one") from error
        return preset

    def to_json(self) -> str:
        """What ``read`` reads."""
        body = {"format": FORMAT, "method": self.spec, "window": self.window, "length": self.length}
        return json.dumps({**body, "model": asdict(self.model), "evidence": dict(self.evidence)}, indent=1) + "\n"

    def check(self, model: Identity) -> None:
        """Raise ``LongspanError`` unless a model is the one that this is of."""
        if found := self.model.differences(model):
            raise LongspanError(
                f"{self.source}: is a preset of {self.model.name}, and {model.name} is another model: "
                f"{'; '.join(found)}. Measure this one with `longspan tune`, or pass the method by hand: {self.by_hand}"
            )

    @property
    def by_hand(self) -> str:
        """The call that runs a model so without the file."""
        return f'longspan.extend(model, "{self.spec}"{"" if self.window is None else f", window={self.window}"})'

    def is_of(self, model: Identity) -> bool:
        """Whether it is of this model and not of another one of its shape: the model has its name, or its short one."""
        names = self.model.name.lower(), Path(self.source).name.partition(".")[0]
        return not self.model.differences(model) and any(name in model.name.lower() for name in names)

    @property
    def reaches(self) -> int:
        """The longest text, in tokens, that its length says something of."""
        return 2 * self.length


def is_preset(method: object) -> bool:
    """Whether this names a preset's file, as no method does."""
    return isinstance(method, str) and method.endswith(ENDING)


def shipped(model: Identity, length: int) -> Preset | None:
    """The preset for a model that comes with longspan, if there is one for a length: the shortest that reaches so far.

    Weights of the same shape may be of another training, so that the name must be that of the preset's model, too.
    """
    fitting = [preset for preset in _all() if length <= preset.reaches and preset.is_of(model)]
    return min(fitting, key=lambda preset: preset.length, default=None)


def _all() -> Iterator[Preset]:
    return (Preset.read(path) for path in sorted(SHIPPED.glob(f"*{ENDING}")))
