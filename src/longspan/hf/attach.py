"""Attach a method to a transformers model and take it off again."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from longspan.attend import Attender
from longspan.calibration import Calibration
from longspan.errors import AttachError, LongspanError, check_count
from longspan.hf import interface
from longspan.hf.auto import choose, free_memory
from longspan.hf.cache import LongspanCache
from longspan.hf.describe import describe, layer_notes, norm_notes
from longspan.hf.fitting import fitting
from longspan.hf.hooks import Attachment
from longspan.hf.kernels import describe_decoding, describe_kernels
from longspan.hf.layer import Layer
from longspan.hf.parallel import least, ranks_of, refuse_pipelined, refuse_uneven
from longspan.hf.placement import refuse_unloaded, runs_on
from longspan.hf.probe import probe
from longspan.hf.report import Report
from longspan.hf.threads import alone
from longspan.hf.tiers import prepare_tier
from longspan.hf.trial import hold_to_stock
from longspan.hf.unwrap import refuse_other_kinds, unwrap, wrapper_note
from longspan.hf.window import refuse_moving_frequencies, trained_on
from longspan.kernels.banded import Impl
from longspan.methods import METHODS, Full, Method
from longspan.methods.parse import no_method, parse_method
from longspan.rope import Angles
from longspan.store import KVTier

_attached: WeakKeyDictionary[PreTrainedModel, Attachment] = WeakKeyDictionary()
_changing = RLock()  # a probe sends the model's layers elsewhere for a while, so nobody else may change it meanwhile

P = ParamSpec("P")
R = TypeVar("R")


def _one_at_a_time(call: Callable[P, R]) -> Callable[P, R]:
    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with _changing:
            return call(*args, **kwargs)

    return run


def extend(
    model: PreTrainedModel,
    method: str | Method | Angles = "dca",
    *,
    window: int | None = None,
    angles: Angles | None = None,
    impl: Impl = "auto",
    calibration: Calibration | str | Path | None = None,
    kv_tier: KVTier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
) -> Report:
    """Let a model read beyond its window, in place.

    ``model(...)``, ``generate`` and pipelines work as before. A model that is already extended is restored first.

    Args:
        model: any causal transformers model with rotary positions.
        method: a name in ``METHODS``, a method, scaled angles (full attention under those), or ``"auto"``, which
            chooses by ``length``, window, memory and calibration and reports the choice and the reason; see
            ``longspan.hf.auto``.
        window: the trained window in tokens; default: ``max_position_embeddings`` of the config.
        angles: scaled angles for the method.
        impl: the implementation of attention; see ``longspan.kernels.dispatch``. A named implementation runs or raises.
            ``"compiled"`` computes a single token in one C call per layer where the method and the layer support it,
            and in separate C kernels elsewhere; ``Report.decode`` has the reason. Scores and choices take what
            ``"auto"`` takes, without C under ``"torch"``, ``"flash_cpu"`` and ``"reference"``.
        calibration: reduced scores for methods that select keys by them: the result of ``longspan.calibrate``, or the
            path of its file. ``extend`` then hashes the weights, about one second per gigabyte.
        kv_tier: where the cache keeps keys and values: ``"device"``, the model's; ``"host"``, the memory of the CPU
            (for a model on the CPU that is the same); ``"disk"``, files mapped into memory, for a context larger than
            that; ``"auto"``, the device until its memory is nearly full, then the host's, then files: a cache moves
            there in place, with a warning. The tokens do not depend on the tier. For a model on a GPU, all tiers but
            ``"device"`` require a method that selects keys: the selected keys are fetched, and the last ``window``
            tokens stay on the device as well.
        kv_dir: for ``"disk"`` and ``"auto"``, an existing folder, best on a fast local disk; default: the system's
            folder for temporary files. The files have no names and are deleted with the cache or the process.
        length: tokens of the longest prompt and its answer, for ``"auto"`` and for methods with a target length
            that have no value of their own.

    Returns:
        The layers that run the method, the layers that stay stock, and the reasons.

    Raises:
        AttachError: a layer is not supported; the model is unchanged.
        CalibrationError: the calibration cannot be read or belongs to another model; the model is unchanged.
        CacheError: ``kv_tier`` does not support this method on this device; the model is unchanged.
        ValueError: a parameter is invalid, ``kv_dir`` included.
    """
    return _extend(model, _Options(method, window, angles, impl, calibration, kv_tier, kv_dir, length))


@_one_at_a_time
def restore(model: PreTrainedModel) -> None:
    """Take the method off; the model is what it was before ``extend``. Does nothing to a model that is not extended."""
    model = unwrap(model)
    _refuse_copies(model)
    attachment = _attached.get(model)
    if attachment is not None:
        with alone(model):
            attachment.detach(model)
            del _attached[model]


@contextmanager
def extended(
    model: PreTrainedModel,
    method: str | Method | Angles = "dca",
    *,
    window: int | None = None,
    angles: Angles | None = None,
    impl: Impl = "auto",
    calibration: Calibration | str | Path | None = None,
    kv_tier: KVTier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
) -> Iterator[Report]:
    """``extend`` for the length of a ``with`` block; what was attached before is attached again after it."""
    options = _Options(method, window, angles, impl, calibration, kv_tier, kv_dir, length)
    inner = unwrap(model)
    previous = _attached.get(inner)
    report = _extend(model, options)
    try:
        yield report
    finally:
        restore(inner)
        if previous is not None:
            previous.attach(inner)
            _attached[inner] = previous


@_one_at_a_time
def inspect(
    model: PreTrainedModel,
    method: str | Method | Angles = "dca",
    *,
    window: int | None = None,
    angles: Angles | None = None,
    calibration: Calibration | str | Path | None = None,
    kv_tier: KVTier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
) -> Report:
    """The report that ``extend`` would give; nothing stays changed."""
    if attachment_of(model) is not None:
        raise LongspanError("the model is extended already; its report is what extend returned")
    with alone(unwrap(model)):
        return _prepare(model, _Options(method, window, angles, "auto", calibration, kv_tier, kv_dir, length))[0]


def attachment_of(model: PreTrainedModel) -> Attachment | None:
    """What is attached to a model, for the rest of ``longspan.hf``; None for a model that is not extended."""
    return _attached.get(unwrap(model))


def new_cache(model: PreTrainedModel) -> LongspanCache:
    """An empty cache for an extended model, to be kept over several calls (``past_key_values=``)."""
    attachment = attachment_of(model)
    if attachment is None:
        raise LongspanError("the model is not extended: call longspan.extend(model, ...) first")
    return attachment.new_cache()


@_one_at_a_time
def _extend(model: PreTrainedModel, options: _Options) -> Report:
    inner = unwrap(model)
    with alone(inner):
        return _changed(model, inner, options)


def _changed(model: PreTrainedModel, inner: PreTrainedModel, options: _Options) -> Report:
    previous = _attached.get(inner)
    if previous is not None:
        restore(inner)
    try:
        report, attender, layers = _prepare(model, options)
    except BaseException:
        if previous is not None:
            previous.attach(inner)
            _attached[inner] = previous
        raise
    attachment = Attachment(inner, attender, layers, report)
    attachment.attach(inner)
    _attached[inner] = attachment
    if report.reason is not None:
        print(f"longspan auto: {report.method.name}: {report.reason}", file=sys.stderr)
    if not report.attached:
        warnings.warn(next(layer_notes(layers, report.window)), stacklevel=5)
    return report


def _refuse_copies(model: PreTrainedModel) -> None:
    if model not in _attached and model.config._attn_implementation == interface.NAME:
        raise LongspanError(
            "the model is a copy or a submodule of an extended model, or was created from its config; call "
            "longspan.restore on the extended model first, or extend the complete model"
        )


@dataclass(frozen=True)
class _Options:
    """What ``extend`` was asked for; see there."""

    method: str | Method | Angles
    window: int | None
    angles: Angles | None
    impl: Impl
    calibration: Calibration | str | Path | None
    kv_tier: KVTier
    kv_dir: str | os.PathLike[str] | None
    length: int | None


def _prepare(model_or_wrapper: PreTrainedModel, options: _Options) -> tuple[Report, Attender, list[Layer]]:
    model, method, kv_tier, kv_dir = unwrap(model_or_wrapper), options.method, options.kv_tier, options.kv_dir
    refuse_other_kinds(model)
    refuse_unloaded(model)
    refuse_pipelined(model)
    _refuse_copies(model)
    window = None if options.window is None else check_count("window", options.window)
    length = None if options.length is None else check_count("length", options.length)
    automatic = isinstance(method, str) and method == "auto"
    if automatic and options.angles is not None:
        raise LongspanError('method="auto" does not accept angles; name a method for them')
    if not automatic:
        chosen = _method(method, options.angles)
    config = model.config.get_text_config(decoder=True)
    trained = trained_on(config, window, model=type(model).__name__)
    size = trained.window
    resolved = None if automatic else trained.resolve(_reaching(chosen, length))  # bad parameters come before the probe
    refuse_moving_frequencies(type(model).__name__, config)
    layers = _probed(model)
    hold_to_stock(model, layers)
    device, reason = runs_on(model), None
    if resolved is None:
        choice = choose(
            length,
            size,
            kv_bytes_per_token=sum(describe(layer, 2).kv_bytes_per_token for layer in layers),
            free=least(model, free_memory(device), device),
            calibrated=options.calibration is not None,
            on_gpu=device.type == "cuda",
        )
        resolved, reason = trained.resolve(choice.method), choice.reason
        kv_tier = choice.kv_tier if kv_tier == "device" else kv_tier
        kv_dir = kv_dir if kv_tier in ("auto", "disk") else None
    resolved.check_layers(size, [layer for layer in layers if layer.rope is not None])
    directory, tier_notes = prepare_tier(resolved, layers, kv_tier, kv_dir)
    ranks = ranks_of(model, layers, resolved.selects)
    calibration = fitting(options.calibration, model, layers, ranks)
    if automatic and not resolved.uses_calibration:
        calibration = None  # it fits, and "auto" found a method that does without
    attender = Attender(resolved, size, options.impl, calibration=calibration, ranks=ranks)
    for layer in layers:
        if layer.rope is not None:
            attender.new_index(layer.index, layer.rope)  # refuses what does not run on ranks
    kernels, kernel_note = describe_kernels(options.impl, device)
    wrapped = wrapper_note(model_or_wrapper)
    attached = tuple(describe(layer, attender.stored_rotations) for layer in layers if layer.rope is not None)
    stock = tuple(describe(layer, 1) for layer in layers if layer.rope is None)
    report = Report(
        model=type(model).__name__,
        method=resolved,
        window=size,
        original_window=trained.original,
        attached=attached,
        stock=stock,
        warnings=(
            *layer_notes(layers, size),
            *norm_notes(layers, attender),
            *trained.notes,
            *resolved.warnings(size),
            *tier_notes,
            *(note for note in (kernel_note, wrapped) if note is not None),
            *_headless(model),
        ),
        kv_tier=kv_tier,
        kv_dir=directory,
        reason=reason,
        calibration=None
        if calibration is None
        else f"scores reduced to {calibration.reduced}, solver {calibration.solver}",
        kernels=kernels,
        ranks=None if ranks is None else (ranks.rank, ranks.size),
        window_source=trained.source,
        decode=describe_decoding(model, attender, layers, kv_tier),
        heads_hold=resolved.heads_hold(
            size,
            [
                (one.index, config.num_attention_heads, one.kv_heads * (1 if ranks is None else ranks.size))
                for one in layers
                if one.rope is not None
            ],
        ),
    )
    return report, attender, layers


def _probed(model: PreTrainedModel) -> list[Layer]:
    try:
        return probe(model)
    except AttachError:
        refuse_uneven(model)  # of a model that does not run itself: where heads are cut in two, this says so
        raise


def _headless(model: PreTrainedModel) -> Iterator[str]:
    if not model.can_generate():
        yield (
            f"{type(model).__name__} has no language-model head; for generate, extend the complete model "
            "(AutoModelForCausalLM)"
        )


def _reaching(method: Method, length: int | None) -> Method:
    return method if length is None else method.reaching(length)


def _method(method: str | Method | Angles, angles: Angles | None) -> Method:
    if isinstance(method, str):
        if method.partition(":")[0] not in METHODS:
            raise LongspanError(no_method(method, ("auto",)))
        method = parse_method(method)
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
