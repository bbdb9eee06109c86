"""Whether a calibration belongs to a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from longspan.attend import Ranks
from longspan.calibration import Calibration
from longspan.errors import CalibrationError
from longspan.model.layer import Layer
from longspan.model.parallel import own_part
from longspan.model.weights import weights_hash
from longspan.weights import KEPT_AS, MIXED


def fitting(
    calibration: Calibration | str | Path | None,
    model: PreTrainedModel,
    layers: Sequence[Layer],
    ranks: Ranks | None = None,
) -> Calibration | None:
    """The calibration, read if a path was given, and checked against the model's attachable layers and its weights.

    Hashing the weights reads all of them: about a second for each gigabyte. If the heads are split over ranks, it is
    the part for this rank's; the whole weights are hashed, which the ranks bring together one by one.

    Raises:
        CalibrationError: it cannot be read or belongs to another model.
    """
    if calibration is None:
        return None
    if isinstance(calibration, (str, Path)):
        calibration = Calibration.load(calibration)
    if not isinstance(calibration, Calibration):
        raise CalibrationError(
            f"calibration is a longspan.Calibration or the path of one, not {type(calibration).__name__}"
        )
    size = 1 if ranks is None else ranks.size
    shapes = {index: (heads * size, channels) for index, (heads, channels) in shapes_of(layers).items()}
    name = model_name(model)
    calibration.check_shapes(shapes, name)  # before the weights are read
    calibration.check(weights_sha256=weights_hash(model), shapes=shapes, dtype=dtype_name(model), model=name)
    return calibration if ranks is None else own_part(calibration, ranks)


def shapes_of(layers: Sequence[Layer]) -> dict[int, tuple[int, int]]:
    """Key heads and their size, of each layer that a method is attached to, by its index in the cache."""
    return {layer.index: (layer.kv_heads, layer.key_dim) for layer in layers if layer.rope is not None}


def model_name(model: PreTrainedModel) -> str:
    """A model's name: its hub name, the last part of its folder, or its class; never a whole path."""
    name = str(getattr(model.config, "_name_or_path", "") or "")
    return (Path(name).name if Path(name).is_dir() or Path(name).is_absolute() else name) or type(model).__name__


def dtype_name(model: PreTrainedModel) -> str:
    """``float32``, ``bfloat16``, ``mixed`` and so on."""
    if model.dtype == torch.float32 and hasattr(model, KEPT_AS):
        return MIXED
    return str(model.dtype).removeprefix("torch.")
