"""Attach a method to a transformers model and take it off again."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from longspan.attend import Attender, uses_calibration
from longspan.bands import Index, Origin
from longspan.calibration import Calibration
from longspan.errors import AttachError, LongspanError, check_count
from longspan.hf import interface
from longspan.hf.auto import choose, free_memory
from longspan.hf.cache import LongspanCache
from longspan.hf.fitting import fitting
from longspan.hf.hooks import Attachment
from longspan.hf.kernels import describe_kernels
from longspan.hf.probe import Layer, probe
from longspan.hf.report import LayerReport, Report
from longspan.hf.tiers import prepare_tier
from longspan.kernels.banded import Impl
from longspan.methods import METHODS, Full, LongHeads, Method, Selecting
from longspan.methods.parse import no_method
from longspan.rope import Angles
from longspan.store import Tier

_attached: WeakKeyDictionary[PreTrainedModel, Attachment] = WeakKeyDictionary()


def extend(
    model: PreTrainedModel,
    method: str | Method | Angles = "dca",
    *,
    window: int | None = None,
    angles: Angles | None = None,
    impl: Impl = "auto",
    calibration: Calibration | str | Path | None = None,
    kv_tier: Tier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
) -> Report:
    """Let a model read beyond its window, in place.

    Afterwards the model is used as always: ``model(...)``, ``generate``, pipelines. A model that is extended already is
    restored first.

    Args:
        model: any causal transformers model with rotary positions.
        method: a name in ``METHODS``, a method, scaled angles (full attention under those), or ``"auto"``, which
            chooses by ``length``, window, memory and calibration, and says what and why; see ``longspan.hf.auto``.
        window: the trained window in tokens; the config's ``max_position_embeddings`` unless given.
        angles: scaled angles to put under the method.
        impl: which kernel runs; see ``longspan.kernels.banded``. The report says what ``"auto"`` comes to.
        calibration: reduced scores for methods that choose keys by them, as ``longspan.calibrate`` returns them, or the
            path of the file they were saved in. Attaching then hashes the weights, about a second a gigabyte.
        kv_tier: where the cache keeps keys and values: ``"device"``, the model's; ``"host"``, the memory of the CPU
            (for a model on the CPU that is the same); ``"disk"``, files mapped into memory, for a context larger than
            that. The tokens do not depend on it. For a model on a GPU, ``"host"`` and ``"disk"`` are for methods that
            select keys: what those ask for is fetched, and the last ``window`` tokens stay on the device as well.
        kv_dir: for ``"disk"``, an existing folder, best on a fast local disk; the system's folder for temporary files
            unless given. The files have no names there and vanish with the cache, or with the process.
        length: tokens of the longest prompt and its answer, for ``"auto"`` and for methods that have to know how far to
            reach and were not told.

    Returns:
        What was attached, what stayed stock and why.

    Raises:
        AttachError: a layer could not be understood; the model is as it was.
        CalibrationError: the calibration cannot be read or was made for another model; the model is as it was.
        CacheError: ``kv_tier`` is not for this method on this device; the model is as it was.
        ValueError: parameters that cannot be, ``kv_dir`` included.
    """
    previous = _attached.get(model)
    if previous is not None:
        restore(model)
    try:
        report, attender, layers = _prepare(model, method, window, angles, impl, calibration, kv_tier, kv_dir, length)
    except BaseException:
        if previous is not None:
            previous.attach(model)
            _attached[model] = previous
        raise
    attachment = Attachment(model, attender, layers, report)
    attachment.attach(model)
    _attached[model] = attachment
    if report.reason is not None:
        print(f"longspan auto: {report.method.name}: {report.reason}", file=sys.stderr)
    if not report.attached:
        warnings.warn(report.warnings[0], stacklevel=2)
    return report


def restore(model: PreTrainedModel) -> None:
    """Take the method off; the model is what it was before ``extend``. Does nothing to a model that is not extended."""
    _refuse_copies(model)
    attachment = _attached.pop(model, None)
    if attachment is not None:
        attachment.detach(model)


@contextmanager
def extended(
    model: PreTrainedModel,
    method: str | Method | Angles = "dca",
    *,
    window: int | None = None,
    angles: Angles | None = None,
    impl: Impl = "auto",
    calibration: Calibration | str | Path | None = None,
    kv_tier: Tier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
) -> Iterator[Report]:
    """``extend`` for the length of a ``with`` block; what was attached before is attached again after it."""
    previous = _attached.get(model)
    report = extend(
        model,
        method,
        window=window,
        angles=angles,
        impl=impl,
        calibration=calibration,
        kv_tier=kv_tier,
        kv_dir=kv_dir,
        length=length,
    )
    try:
        yield report
    finally:
        restore(model)
        if previous is not None:
            previous.attach(model)
            _attached[model] = previous


def inspect(
    model: PreTrainedModel,
    method: str | Method | Angles = "dca",
    *,
    window: int | None = None,
    angles: Angles | None = None,
    calibration: Calibration | str | Path | None = None,
    kv_tier: Tier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
) -> Report:
    """The report that ``extend`` would give; nothing stays changed."""
    if model in _attached:
        raise LongspanError("the model is extended already; its report is what extend returned")
    return _prepare(model, method, window, angles, "auto", calibration, kv_tier, kv_dir, length)[0]


def attachment_of(model: PreTrainedModel) -> Attachment | None:
    """What is attached to a model, for the rest of ``longspan.hf``; None for a model that is not extended."""
    return _attached.get(model)


def new_cache(model: PreTrainedModel) -> LongspanCache:
    """An empty cache for an extended model, to be kept over several calls (``past_key_values=``)."""
    if model not in _attached:
        raise LongspanError("the model is not extended: call longspan.extend(model, ...) first")
    return _attached[model].new_cache()


def _refuse_copies(model: PreTrainedModel) -> None:
    if model not in _attached and model.config._attn_implementation == interface.NAME:
        raise LongspanError(
            "the model is a copy of an extended one, whose hooks it took over; restore a model before copying it"
        )


def _prepare(
    model: PreTrainedModel,
    method: str | Method | Angles,
    window: int | None,
    angles: Angles | None,
    impl: Impl,
    calibration: Calibration | str | Path | None,
    kv_tier: Tier,
    kv_dir: str | os.PathLike[str] | None,
    length: int | None,
) -> tuple[Report, Attender, list[Layer]]:
    if not isinstance(model, PreTrainedModel):
        raise AttachError(f"longspan extends transformers models (PreTrainedModel), not {type(model).__name__}")
    _refuse_copies(model)
    for name, tokens in (("window", window), ("length", length)):
        if tokens is not None:
            check_count(name, tokens)
    automatic = isinstance(method, str) and method == "auto"
    if automatic and angles is not None:
        raise LongspanError('"auto" takes no angles; name the method that is to run under them')
    if not automatic:
        chosen = _method(method, angles)
    config = model.config.get_text_config(decoder=True)
    trained = getattr(config, "max_position_embeddings", None)
    if window is None and trained is None:
        raise AttachError(
            f"the config of {type(model).__name__} has no max_position_embeddings; pass window=, the number of tokens "
            "it was trained on"
        )
    size = int(window if window is not None else trained or 0)
    resolved = None if automatic else _reaching(chosen, length).resolve(size)  # bad parameters come before the probe
    _fixed_frequencies(type(model).__name__, config)
    layers = probe(model)
    reason = None
    if resolved is None:
        choice = choose(
            length,
            size,
            kv_bytes_per_token=sum(_describe(layer, 2).kv_bytes_per_token for layer in layers),
            free=free_memory(model.device),
            calibrated=calibration is not None,
            on_gpu=model.device.type == "cuda",
        )
        resolved, reason = choice.method.resolve(size), choice.reason
        kv_tier = choice.kv_tier if kv_tier == "device" else kv_tier
        kv_dir = kv_dir if kv_tier == "disk" else None
    _representable(resolved, layers)
    _refuse_idle(resolved, layers)
    _turnable(resolved, layers, size)
    directory, tier_notes = prepare_tier(resolved, layers, kv_tier, kv_dir)
    given = fitting(calibration, model, layers)
    if automatic and not uses_calibration(resolved):
        given = None  # it fits, and "auto" found a method that does without
    attender = Attender(resolved, size, impl, calibration=given)
    kernels, kernel_note = describe_kernels(impl, model.device)
    original = _original_window(config)
    attached = tuple(_describe(layer, attender.stored_rotations) for layer in layers if layer.rope is not None)
    stock = tuple(_describe(layer, 1) for layer in layers if layer.rope is None)
    report = Report(
        model=type(model).__name__,
        method=resolved,
        window=size,
        original_window=original if original not in (None, size) else None,
        attached=attached,
        stock=stock,
        warnings=(
            *_warnings(layers, size),
            *_norm_warnings(layers, attender),
            *resolved.warnings(size),
            *tier_notes,
            *([kernel_note] if kernel_note is not None else []),
        ),
        kv_tier=kv_tier,
        kv_dir=directory,
        reason=reason,
        calibration=None if given is None else f"scores reduced to {given.reduced}, solver {given.solver}",
        kernels=kernels,
    )
    return report, attender, layers


def _representable(method: Method, layers: list[Layer]) -> None:
    """Raise if LongHeads' representation, a mean of values held against keys, meets values of another size."""
    if isinstance(method, LongHeads) and method.score == "representation":
        for layer in layers:
            if layer.rope is not None and layer.key_dim != layer.value_dim:
                raise AttachError(
                    f"{layer.name}: keys of size {layer.key_dim} and values of size {layer.value_dim}; longheads' "
                    "representation takes equal sizes: use another score, such as LongHeads(score='bounds')"
                )


def _turnable(method: Method, layers: list[Layer], window: int) -> None:
    """Raise if gathered keys would be turned again after a normalisation that belongs after their last rotation."""
    if isinstance(method, Selecting) and method.selects and method.seen_at(window).turns_gathered:
        for layer in layers:
            if layer.norms:
                raise AttachError(
                    f"{layer.name}: keys are normalised after their rotation, and {method.name} with remap='slots' "
                    "would turn them once more; use remap='far'"
                )


def _norm_warnings(layers: list[Layer], attender: Attender) -> Iterator[str]:
    if any(layer.norms for layer in layers) and not {Index(), Origin()} >= set(attender.key_maps):
        yield (
            f"the model normalises after the rotation, so that scores depend on more than distances: "
            f"{attender.method.name} moves keys and queries together, and rows inside the window change too"
        )


def _reaching(method: Method, length: int | None) -> Method:
    return method if length is None else method.reaching(length)


def _refuse_idle(method: Method, layers: list[Layer]) -> None:
    """Raise if the method is to choose keys in later layers than there are."""
    attached = [layer.index for layer in layers if layer.rope is not None]
    if isinstance(method, Selecting) and method.selects and attached and not any(map(method.selects_in, attached)):
        raise AttachError(
            f"{method.name} would choose keys in none of this model's layers, the last of which is number "
            f"{attached[-1]}; give a smaller from_layer"
        )


def _warnings(layers: list[Layer], window: int) -> Iterator[str]:
    if all(layer.rope is None for layer in layers):
        yield (
            f"attached to no layer ({layers[0].reason} and the like): the model runs as before. To extend it, load it "
            "with full attention, for example with sliding_window=None"
        )
    wide = [layer.index for layer in layers if layer.sliding is not None and layer.sliding > window]
    if wide:
        yield (
            f"the sliding windows of {len(wide)} stock layers are wider than the window of {window} tokens, so they "
            "see positions beyond it"
        )
    yield from dict.fromkeys(layer.note for layer in layers if layer.note)


def _method(method: str | Method | Angles, angles: Angles | None) -> Method:
    if isinstance(method, str):
        if method not in METHODS:
            raise LongspanError(no_method(method, ("auto",)))
        method = METHODS[method]()
    elif isinstance(method, Angles):
        method = Full(angles=method)
    elif not isinstance(method, Method):
        raise LongspanError(f"method is a name, a Method or Angles, not {type(method).__name__}")
    if angles is None:
        return method
    if not isinstance(angles, Angles):
        raise LongspanError(f"angles are Angles such as longspan.YaRN(factor=4), not {type(angles).__name__}")
    if type(method.angles) not in (Angles, type(angles)):
        raise LongspanError(
            f"{method.name} is full attention under {method.angles}; angles={angles} would replace those"
        )
    return replace(method, angles=angles)


def _rope_types(config: Any) -> Iterator[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    yield from nested or [parameters]


def _fixed_frequencies(name: str, config: Any) -> None:
    for parameters in _rope_types(config):
        kind = parameters.get("rope_type", "default")
        if kind in ("dynamic", "longrope"):
            raise AttachError(
                f"{name}: its config has rope_type {kind!r}, whose frequencies change with the input's length, so keys "
                "cannot be stored rotated; load it with rope_parameters of rope_type 'default', 'linear' or 'yarn'"
                + (", or that and method='dynamic-ntk'" if kind == "dynamic" else "")
            )


def _original_window(config: Any) -> int | None:
    found = [p.get("original_max_position_embeddings") for p in _rope_types(config)]
    return next((int(value) for value in found if value is not None), None)


def _describe(layer: Layer, rotations: int) -> LayerReport:
    rope = None
    if layer.rope is not None:
        rope = f"{layer.rope.rotated} of {layer.rope.head_dim} channels, {layer.rope.layout}"
        if layer.norms is not None:
            rope += ", normalised after the rotation"
    size = (
        0
        if layer.sliding is not None
        else layer.kv_heads * (rotations * layer.key_dim + layer.value_dim) * layer.itemsize
    )
    return LayerReport(layer.index, layer.name, rope, layer.reason, size)
