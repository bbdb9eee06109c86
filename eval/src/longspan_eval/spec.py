"""How a model is run: as it is, or under a method with its parameters, written as one short text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan import files
from longspan.bundled import FOLDER
from longspan.errors import LongspanError
from longspan.methods import METHODS, Method
from longspan.methods.parse import no_method, parse_method, split_spec, written
from longspan.model.preset import Preset, is_preset

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from longspan.memory import KVTier

STOCK = "stock"  # the row of the model as transformers runs it, without longspan
BUNDLED = "bundled"
CALIBRATION = "calibration.safetensors"  # the bundled model's, in its folder


@dataclass(frozen=True)
class MethodSpec:
    """One way to run a model: in most tables a row.

    Attributes:
        method: the method, not yet told a window or a length; None for the stock model.
        calibration: the file with the reduced scores that it uses, or None.
        window: the window that it declares, in tokens, or None for the model's.
        preset: what it was read from, which says of which model it is.
    """

    method: Method | None
    calibration: Path | None = None
    window: int | None = None
    preset: Preset | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The row's name, of which ``parse_spec`` makes it: the method, and what differs from its defaults.

        One row has one label, however it was written.
        """
        if self.method is None:
            return STOCK
        text, more = written(self.method), []
        if self.calibration is not None:
            more.append(f"calibration={BUNDLED if self.calibration == FOLDER / CALIBRATION else self.calibration}")
        if self.window is not None:
            more.append(f"declared={self.window}")
        return f"{text}{',' if ':' in text else ':'}{','.join(more)}" if more else text

    @property
    def name(self) -> str:
        """The method's name, whatever its parameters."""
        return STOCK if self.method is None else self.method.name

    def reaching(self, length: int) -> Method | None:
        """The method, told the length it has to reach if it asks for one."""
        return None if self.method is None else self.method.reaching(length)

    def attach(
        self, model: PreTrainedModel, length: int, window: int | None = None, *, kv_tier: KVTier = "device"
    ) -> None:
        """Make a model run so, for prompts of ``length`` tokens; raises what ``extend`` raises.

        Args:
            window: the trained one, if the config is not right about it.
            kv_tier: where an extended model keeps keys and values.
        """
        from longspan.hf import extend, restore
        from longspan.hf.preset import identity_of  # here: texts are parsed, and names completed, before any model is

        restore(model)
        method = self.reaching(length)
        if method is None:
            return
        if self.preset is not None:
            self.preset.check(identity_of(model))
        given: dict[str, Any] = {} if self.calibration is None else {"calibration": self.calibration}
        if self.window is not None or window is not None:
            given["window"] = self.window or window
        extend(model, method, kv_tier=kv_tier, **given)

    def parameters(self, window: int, length: int) -> dict[str, Any]:
        """Every parameter as JSON has it, at a model's window and a length; as given, if they do not fit those."""
        method = self.reaching(length)
        if method is None:
            return {}
        try:
            method = method.resolve(self.window or window)
        except ValueError as error:
            return {**plain(method.parameters()), "error": str(error)}
        shown = plain(method.parameters())
        if self.window is not None:
            shown["declared"] = self.window
        if self.calibration is not None:
            shown["calibration_sha256"] = hashlib.sha256(files.read(self.calibration)).hexdigest()
        return shown


def parse_spec(spec: str, methods: Mapping[str, type[Method]] = METHODS) -> MethodSpec:
    """A row from text: ``stock``, ``dca``, ``dca:chunk_size=256,angles=yarn``, or a preset's file.

    ``calibration=FILE`` (or ``calibration=bundled``) is the row's calibration, ``declared=TOKENS`` the window that it
    declares; any other key is a parameter of the method or of its angles, one of ``methods``.

    Raises:
        LongspanError: the text, the method or a parameter is wrong, or the calibration is not there.
    """
    if is_preset(spec):
        preset = Preset.read(spec)
        return MethodSpec(preset.method, None, preset.window, preset)
    name, settings = split_spec(spec)
    if name == STOCK:
        if settings:
            raise LongspanError(f"{spec!r}: the stock model has no parameters")
        return MethodSpec(None)
    if name not in methods:
        raise LongspanError(no_method(name, (STOCK,), methods))
    given = settings.pop("calibration", None)
    file = None if given is None else FOLDER / CALIBRATION if given == BUNDLED else Path(given)
    if file is not None and not file.is_file():
        raise LongspanError(f"{spec!r}: there is no calibration {file}; make one with `longspan calibrate`")
    declared = settings.pop("declared", None)
    if declared is not None and not (declared.isdecimal() and int(declared) > 0):
        raise LongspanError(f"{spec!r}: declared must be a window in tokens, not {declared!r}")
    rest = name + (":" + ",".join(f"{key}={value}" for key, value in settings.items()) if settings else "")
    return MethodSpec(parse_method(rest, methods), file, None if declared is None else int(declared))


def parse_specs(specs: list[str] | tuple[str, ...]) -> list[MethodSpec]:
    """Rows from texts, each different from the others."""
    parsed = [parse_spec(spec) for spec in specs]
    labels = [one.label for one in parsed]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if not parsed:
        raise LongspanError("give at least one row")
    if twice is not None:
        raise LongspanError(f"the row {twice!r} is listed twice")
    return parsed


def split_specs(text: str) -> list[str]:
    """Rows in one text, set apart by commas, as specs: ``stock,dca:chunk_size=256,angles=yarn,esa`` are three."""
    specs: list[str] = []
    for piece in text.split(","):
        # A further parameter of the row before: a row's own first parameter comes after a colon.
        if specs and "=" in piece and ":" not in piece.partition("=")[0]:
            specs[-1] += f",{piece}"
        else:
            specs.append(piece)
    return specs


def plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON has them, those that it cannot have in words."""
    return {
        key: value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)
        for key, value in parameters.items()
    }
