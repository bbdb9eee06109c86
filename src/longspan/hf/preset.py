"""Presets on models: which one a method names, and whether it is of the model."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from longspan.errors import AttachError, LongspanError
from longspan.hf.calibration.check import model_name
from longspan.model.preset import Identity, Preset, is_preset, shipped
from longspan.model.window import trained_on


def identity_of(model: PreTrainedModel) -> Identity:
    """What a preset says of its model."""
    config = model.config.get_text_config(decoder=True)
    try:
        window = trained_on(config).window
    except AttachError:  # which its caller has to state
        window = None
    return Identity.of(config, model_name(model), window)


def named(
    model: PreTrainedModel, method: Any, *, window: int | None, angles: Any, length: int | None
) -> tuple[Any, int | None, list[str]]:
    """The method and the window that a preset's file names, and notes; any other method as it is.

    Raises:
        LongspanError: the file holds no preset, or one of another model; or a window or angles are given, too.
    """
    if not is_preset(method):
        return method, window, []
    preset = Preset.read(method)
    preset.check(identity_of(model))
    given = [name for name, value in (("window", window), ("angles", angles)) if value is not None]
    if given and (window != preset.window or angles is not None):
        raise LongspanError(
            f"{method}: a preset states all of a method, so leave out {' and '.join(given)}; or pass the method by "
            f"hand: {preset.by_hand}"
        )
    notes = []
    if length is not None and length > preset.reaches:
        notes.append(
            f"{method} was found at {preset.length:,} tokens, which says little of {length:,}; measure that length "
            "with longspan tune"
        )
    return preset.method, preset.window, notes


def shipped_for(model: PreTrainedModel, length: int) -> Preset | None:
    """The preset for a model and a length that comes with longspan, if there is one."""
    return shipped(identity_of(model), length)
