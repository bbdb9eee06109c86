"""A calibration: the projections of all attached layers, their origin, and the file format of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from longspan import files
from longspan.calibration.projection import Projection
from longspan.calibration.solvers import SOLVERS
from longspan.errors import CalibrationError

VERSION = 1
_KEY = "longspan_calibration"  # one JSON entry of the header; separate entries would be written in random order
_AGAIN = "create it again with longspan.calibrate or `longspan calibrate`"


@dataclass(frozen=True, eq=False)
class Calibration:
    """Projections for one model.

    Attributes:
        layers: the maps for scores summed over all heads, ``[d', Hkv * D]``, by the layer's index in the cache.
        heads: the maps for scores per key head, ``[Hkv, d'', D]``, by the same index.
        reduced, reduced_per_head: ``d'`` and ``d''``.
        solver: the solver of the maps, a name in ``SOLVERS``.
        model_id: the model's name, for messages.
        weights_sha256: the hash of the model's weights, from ``longspan.model.weights.weights_hash``.
        dtype: the dtype of the model during calibration, for messages; the hash covers it.
        window: the largest context of the queries and keys, in tokens.
        tokens: the number of tokens whose queries and keys the solver used.

    Raises:
        CalibrationError: the fields contradict each other.
    """

    layers: Mapping[int, Projection] = field(repr=False)
    heads: Mapping[int, Projection] = field(repr=False)
    reduced: int
    reduced_per_head: int
    solver: str
    model_id: str
    weights_sha256: str
    dtype: str
    window: int
    tokens: int

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise CalibrationError(f"solver must be one of {', '.join(SOLVERS)}, not {self.solver!r}")
        for name in ("reduced", "reduced_per_head", "window", "tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise CalibrationError(f"a calibration's {name} must be an integer ≥ 1, not {value!r}")
        for name in ("model_id", "weights_sha256", "dtype"):
            if not isinstance(getattr(self, name), str):
                raise CalibrationError(f"a calibration's {name} must be a string, not {getattr(self, name)!r}")
        if not self.layers or set(self.layers) != set(self.heads):
            raise CalibrationError(
                "a calibration must have the same layers, at least one, in `layers` and `heads`, not "
                f"{sorted(self.layers)} and {sorted(self.heads)}"
            )
        for index, layer in self.layers.items():
            _fits(index, layer, self.heads[index], self.reduced, self.reduced_per_head)

    def check(self, *, weights_sha256: str, shapes: Mapping[int, tuple[int, int]], dtype: str, model: str) -> None:
        """Raise ``CalibrationError`` with the difference if the calibration belongs to another model.

        Args:
            weights_sha256: the hash of the model's weights.
            shapes: ``(Hkv, D)`` of each layer with a method attached, by its index in the cache.
            dtype: the model's dtype.
            model: the model's name, for messages.
        """
        self.check_shapes(shapes, model)
        if weights_sha256 == self.weights_sha256:
            return
        if dtype != self.dtype:
            reason = f"{model} runs in {dtype}, but its calibration ran in {self.dtype}: load it in {self.dtype}"
        else:
            reason = (
                f"the weights of {model} (sha256 {weights_sha256[:12]}...) differ from the calibrated weights of "
                f"{self.model_id} (sha256 {self.weights_sha256[:12]}...): load the calibrated ones"
            )
        raise CalibrationError(f"{reason}, or {_AGAIN}")

    def check_shapes(self, shapes: Mapping[int, tuple[int, int]], model: str) -> None:
        """Check the layers, their numbers of heads and head sizes, without reading the weights; see ``check``."""
        if set(shapes) != set(self.layers):
            raise CalibrationError(
                f"the calibration is for layers {sorted(self.layers)} of {self.model_id}, but {model} is extended in "
                f"layers {sorted(shapes)}: {_AGAIN}"
            )
        for index, (heads, size) in shapes.items():
            theta = self.heads[index].theta_k
            if (theta.shape[0], theta.shape[2]) != (heads, size):
                raise CalibrationError(
                    f"layer {index} of {model} has {heads} key heads of {size} channels, but the calibration is for "
                    f"{theta.shape[0]} heads of {theta.shape[2]} channels, of {self.model_id}: {_AGAIN}"
                )

    def save(self, path: str | Path) -> None:
        """Write ``to_bytes()`` to a file.

        Raises:
            OSError: the file cannot be written; an existing file stays unchanged.
        """
        files.write(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """One safetensors file: the maps as tensors, ``settings()`` as JSON in the header."""
        tensors = {
            f"{field}.{index}.{name}": getattr(maps, name).detach().cpu().contiguous()
            for field in ("layers", "heads")
            for index, maps in getattr(self, field).items()
            for name in ("theta_q", "theta_k")
        }
        header = json.dumps({"version": VERSION, "maps_sha256": self.maps_sha256, **self.settings()}, sort_keys=True)
        data: bytes = save(tensors, metadata={_KEY: header})
        return data

    @property
    def maps_sha256(self) -> str:
        """SHA-256 over the maps, their shapes, dtypes and layers."""
        digest = hashlib.sha256()
        for kind in (self.layers, self.heads):
            for index in sorted(kind):
                for theta in (kind[index].theta_q, kind[index].theta_k):
                    digest.update(f"{index} {tuple(theta.shape)} {theta.dtype}".encode())
                    digest.update(theta.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def settings(self) -> dict[str, Any]:
        """All fields except the maps, as values that JSON can represent."""
        names = ("reduced", "reduced_per_head", "solver", "model_id", "weights_sha256", "dtype", "window", "tokens")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration from a file of ``save``.

        Raises:
            CalibrationError: the file does not exist, is not a calibration, or is damaged.
        """
        path = Path(path)
        if not path.is_file():
            raise CalibrationError(f"{path}: this calibration file does not exist; {_AGAIN}")
        try:
            with safe_open(path, framework="pt") as file:
                header = (file.metadata() or {}).get(_KEY)
                names = () if header is None else file.keys()
                tensors = {name: file.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as error:
            raise CalibrationError(
                f"{path}: not a complete safetensors file ({' '.join(str(error).split())}); {_AGAIN}"
            ) from error
        if header is None:
            raise CalibrationError(f"{path}: a safetensors file without a longspan calibration; {_AGAIN}")
        try:
            settings = json.loads(header)
            version = settings.pop("version") if isinstance(settings, dict) else None
            if version != VERSION:
                raise CalibrationError(f"its format is version {version!r}, and this longspan reads version {VERSION}")
            stated = settings.pop("maps_sha256", None)  # the first files had none
            made = cls(**{**settings, **_projections(tensors)})
            if stated not in (None, made.maps_sha256):
                raise CalibrationError("the file is damaged: its maps differ from those that were written")
            return made
        except KeyError as error:
            raise CalibrationError(f"{path}: its header has no {error}; {_AGAIN}") from error
        except RecursionError:
            raise CalibrationError(f"{path}: its header has too many nested levels; {_AGAIN}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise CalibrationError(f"{path}: {error}; {_AGAIN}") from error


def _projections(tensors: Mapping[str, Tensor]) -> dict[str, dict[int, Projection]]:
    """Convert the named tensors of a file to ``{"layers": {index: ...}, "heads": {index: ...}}``."""
    pairs: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        field, _, rest = name.partition(".")
        index, _, theta = rest.partition(".")
        if field not in ("layers", "heads") or not index.isdecimal() or theta not in ("theta_q", "theta_k"):
            raise CalibrationError(f"its tensor {name!r} does not belong to a calibration")
        pairs.setdefault((field, int(index)), {})[theta] = tensor
    projections: dict[str, dict[int, Projection]] = {"layers": {}, "heads": {}}
    for (field, layer), maps in sorted(pairs.items()):
        if len(maps) != 2:
            raise CalibrationError(f"{field} {layer} has only {next(iter(maps))}; it needs theta_q and theta_k")
        projections[field][layer] = Projection(**maps)
    return projections


def _fits(index: int, layer: Projection, heads: Projection, reduced: int, reduced_per_head: int) -> None:
    if layer.per_head or not heads.per_head:
        raise CalibrationError(
            f"layer {index}: `layers` must have maps [d', channels] and `heads` maps [heads, d'', channels]"
        )
    if (layer.size, heads.size) != (reduced, reduced_per_head):
        raise CalibrationError(
            f"layer {index} has maps to {layer.size} numbers and {heads.size} per head, but the calibration has "
            f"reduced={reduced} and reduced_per_head={reduced_per_head}"
        )
    if layer.theta_k.shape[-1] != heads.theta_k.shape[0] * heads.theta_k.shape[-1]:
        raise CalibrationError(
            f"layer {index}: the map of the layer has {layer.theta_k.shape[-1]} channels, and the maps of its heads "
            f"have {heads.theta_k.shape[0]} times {heads.theta_k.shape[-1]}"
        )


def same_maps(a: Calibration | None, b: Calibration | None) -> bool:
    """Whether two calibrations have equal maps; None stands for no calibration."""
    if a is None or b is None or a is b:
        return a is b
    return a.maps_sha256 == b.maps_sha256
