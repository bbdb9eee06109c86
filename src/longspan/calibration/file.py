"""A calibration: the projections of every attached layer, what they were made of, and the file that holds both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
_KEY = "longspan_calibration"  # one entry of the header, as JSON: entries of their own would come in random order
_AGAIN = "make it again with longspan.calibrate or `longspan calibrate`"


@dataclass(frozen=True, eq=False)
class Calibration:
    """Projections for one model.

    Attributes:
        layers: by the layer's index in the cache, ``[d', Hkv * D]``: scores summed over all heads.
        heads: by the same index, ``[Hkv, d'', D]``: scores per key head.
        reduced, reduced_per_head: ``d'`` and ``d''``.
        solver: how they were found, a name in ``SOLVERS``.
        model_id: the model's name, for messages.
        weights_sha256: of the weights, as ``longspan.hf.weights.weights_hash`` gives it.
        dtype: the type the model ran in, for messages; the hash covers it.
        window: tokens of context that queries and keys had at most.
        tokens: how many queries and keys the projections were made from.

    Raises:
        CalibrationError: the parts do not fit each other.
    """

    layers: Mapping[int, Projection]
    heads: Mapping[int, Projection]
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
            raise CalibrationError(f"the solver is one of {', '.join(SOLVERS)}, not {self.solver!r}")
        for name in ("reduced", "reduced_per_head", "window", "tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise CalibrationError(f"a calibration's {name} is a whole number from 1, not {value!r}")
        for name in ("model_id", "weights_sha256", "dtype"):
            if not isinstance(getattr(self, name), str):
                raise CalibrationError(f"a calibration's {name} is a text, not {getattr(self, name)!r}")
        if not self.layers or set(self.layers) != set(self.heads):
            raise CalibrationError(
                f"a calibration has layers and heads for the same layers, not for {sorted(self.layers)} and "
                f"{sorted(self.heads)}"
            )
        for index, layer in self.layers.items():
            _fits(index, layer, self.heads[index], self.reduced, self.reduced_per_head)

    def check(self, *, weights_sha256: str, shapes: Mapping[int, tuple[int, int]], dtype: str, model: str) -> None:
        """Raise ``CalibrationError``, naming what differs, unless this was made for the model described.

        Args:
            weights_sha256: of the model's weights.
            shapes: ``(Hkv, D)`` of each layer that a method is attached to, by its index in the cache.
            dtype: the model's type. model: what to call it.
        """
        self.check_shapes(shapes, model)
        if weights_sha256 == self.weights_sha256:
            return
        if dtype != self.dtype:
            reason = f"{model} runs in {dtype} and the calibration was made in {self.dtype}: load it in {self.dtype}"
        else:
            reason = (
                f"the weights of {model} (sha256 {weights_sha256[:12]}...) are not those of {self.model_id} that the "
                f"calibration was made for (sha256 {self.weights_sha256[:12]}...): load those"
            )
        raise CalibrationError(f"{reason}, or {_AGAIN}")

    def check_shapes(self, shapes: Mapping[int, tuple[int, int]], model: str) -> None:
        """The part of ``check`` that costs nothing: the layers and the sizes of their heads."""
        if set(shapes) != set(self.layers):
            raise CalibrationError(
                f"the calibration is for layers {sorted(self.layers)} of {self.model_id} and {model} is extended in "
                f"layers {sorted(shapes)}: {_AGAIN}"
            )
        for index, (heads, size) in shapes.items():
            own = self.heads[index].theta_k
            if (own.shape[0], own.shape[2]) != (heads, size):
                raise CalibrationError(
                    f"layer {index} of {model} has {heads} key heads of {size} channels and the calibration was made "
                    f"for {own.shape[0]} of {own.shape[2]}, of {self.model_id}: {_AGAIN}"
                )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, everything but the maps as JSON in its header.

        Raises:
            OSError: it cannot be written; a file that was there is as it was.
        """
        tensors: dict[str, Tensor] = {}
        for kind in ("layers", "heads"):
            for index, maps in getattr(self, kind).items():
                tensors[f"{kind}.{index}.theta_q"] = maps.theta_q.detach().cpu().contiguous()
                tensors[f"{kind}.{index}.theta_k"] = maps.theta_k.detach().cpu().contiguous()
        head = json.dumps({"version": VERSION, **self.settings()}, sort_keys=True)
        files.write(path, save(tensors, metadata={_KEY: head}))

    def settings(self) -> dict[str, Any]:
        """Everything but the maps, as plain values."""
        names = ("reduced", "reduced_per_head", "solver", "model_id", "weights_sha256", "dtype", "window", "tokens")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what ``save`` wrote.

        Raises:
            CalibrationError: there is no such file, it is no calibration, or it is damaged.
        """
        path = Path(path)
        if not path.is_file():
            raise CalibrationError(f"{path}: there is no such calibration file; {_AGAIN}")
        try:
            with safe_open(path, framework="pt") as file:
                head = (file.metadata() or {}).get(_KEY)
                tensors = {} if head is None else {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CalibrationError(
                f"{path}: not a whole safetensors file ({' '.join(str(error).split())}); {_AGAIN}"
            ) from error
        if head is None:
            raise CalibrationError(f"{path}: a safetensors file, but not one that longspan made a calibration of")
        try:
            settings = json.loads(head)
            version = settings.pop("version") if isinstance(settings, dict) else None
            if version != VERSION:
                raise CalibrationError(f"its format is version {version!r} and this longspan reads version {VERSION}")
            found = _projections(tensors)
            return cls(layers=found["layers"], heads=found["heads"], **settings)
        except KeyError as error:
            raise CalibrationError(f"{path}: its header has no {error}; {_AGAIN}") from error
        except RecursionError:
            raise CalibrationError(f"{path}: its header is nested too deep; {_AGAIN}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise CalibrationError(f"{path}: {error}; {_AGAIN}") from error


def _projections(tensors: Mapping[str, Tensor]) -> dict[str, dict[int, Projection]]:
    """``{"layers": {index: ...}, "heads": {index: ...}}`` from the tensors of a file, by name."""
    pairs: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, x in tensors.items():
        kind, _, rest = name.partition(".")
        index, _, which = rest.partition(".")
        if kind not in ("layers", "heads") or not index.isdecimal() or which not in ("theta_q", "theta_k"):
            raise CalibrationError(f"it holds a tensor {name!r}, which is no part of a calibration")
        pairs.setdefault((kind, int(index)), {})[which] = x
    found: dict[str, dict[int, Projection]] = {"layers": {}, "heads": {}}
    for (kind, layer), maps in sorted(pairs.items()):
        if len(maps) != 2:
            raise CalibrationError(f"{kind} {layer} has {next(iter(maps))} alone; it takes theta_q and theta_k")
        found[kind][layer] = Projection(**maps)
    return found


def _fits(index: int, layer: Projection, heads: Projection, reduced: int, reduced_per_head: int) -> None:
    if layer.per_head or not heads.per_head:
        raise CalibrationError(f"layer {index}: layers hold [d', channels] and heads hold [heads, d'', channels]")
    if (layer.size, heads.size) != (reduced, reduced_per_head):
        raise CalibrationError(
            f"layer {index} is reduced to {layer.size} and {heads.size} per head where the calibration says {reduced} "
            f"and {reduced_per_head}"
        )
    if layer.theta_k.shape[-1] != heads.theta_k.shape[0] * heads.theta_k.shape[-1]:
        raise CalibrationError(
            f"layer {index}: {layer.theta_k.shape[-1]} channels are not those of {heads.theta_k.shape[0]} heads of "
            f"{heads.theta_k.shape[-1]}"
        )


def same_maps(a: Calibration | None, b: Calibration | None) -> bool:
    """Whether two calibrations reduce scores alike; None is no calibration."""
    if a is None or b is None or a is b:
        return a is b
    if a.layers.keys() != b.layers.keys() or a.heads.keys() != b.heads.keys():
        return False
    pairs = [(x[n], y[n]) for x, y in ((a.layers, b.layers), (a.heads, b.heads)) for n in x]
    return all(torch.equal(p.theta_q, r.theta_q) and torch.equal(p.theta_k, r.theta_k) for p, r in pairs)
