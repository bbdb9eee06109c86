"""Prepare an attachment: choose and resolve the method, check it with the model's layers, and write the report."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from longspan.attend import Attender
from longspan.calibration import Calibration
from longspan.errors import AttachError, LongspanError, check_count
from longspan.hf.calibration.check import fitting
from longspan.hf.preset import named, shipped_for
from longspan.hf.probe.layers import probe
from longspan.hf.probe.stock_check import hold_to_stock
from longspan.hf.tiers import prepare_tier
from longspan.kernels.banded import Impl
from longspan.machine.memory import free_memory
from longspan.memory import KVTier
from longspan.methods import METHODS, Full, Method
from longspan.methods.keywords import configured
from longspan.methods.parse import no_method, parse_method
from longspan.model.auto import choose, kv_bytes_per_token
from longspan.model.describe import describe, describe_decoding, describe_kernels, layer_notes
from longspan.model.layer import Layer
from longspan.model.parallel import least, ranks_of, refuse_pipelined, refuse_uneven
from longspan.model.placement import refuse_unloaded, runs_on
from longspan.model.report import Report
from longspan.model.unwrap import refuse_other_kinds, unwrap, wrapper_note
from longspan.model.window import refuse_moving_frequencies, trained_on
from longspan.rope import Angles, Rope
from longspan.weights import KEPT_AS


def prepare(
    model_or_wrapper: PreTrainedModel,
    method: str | Method | Angles | type[Method | Angles],
    *,
    window: int | None = None,
    angles: Angles | None = None,
    impl: Impl = "auto",
    calibration: Calibration | str | Path | None = None,
    kv_tier: KVTier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
    **parameters: Any,
) -> tuple[Report, Attender, list[Layer]]:
    """The report of ``extend``, the attention of the resolved method, and the probed layers; nothing is attached.

    Raises:
        AttachError, CalibrationError, CacheError, ValueError: see ``extend``.
    """
    settings = {"window": window, "calibration": calibration, "kv_dir": kv_dir, "length": length}
    settings |= {"impl": None if impl == "auto" else impl, "kv_tier": None if kv_tier == "device" else kv_tier}
    method = configured(method, parameters, [name for name, value in settings.items() if value is not None])
    model = unwrap(model_or_wrapper)
    refuse_other_kinds(model)
    refuse_unloaded(model)
    refuse_pipelined(model)
    method, window, preset_notes = named(model, method, window=window, angles=angles, length=length)
    window = None if window is None else check_count("window", window)
    length = None if length is None else check_count("length", length)
    automatic = isinstance(method, str) and method == "auto"
    config = model.config.get_text_config(decoder=True)
    trained = trained_on(config, window, model=type(model).__name__)
    size = trained.window
    if not automatic:  # bad parameters come before the probe
        own = _method(method, angles)
        resolved = trained.resolve(own if length is None else own.reaching(length))
    elif angles is not None:
        raise LongspanError('method="auto" does not accept angles; name a method for them')
    refuse_moving_frequencies(type(model).__name__, config)
    try:
        layers = probe(model)
    except AttachError:
        refuse_uneven(model)  # of a model that does not run itself: where heads are cut in two, this says so
        raise
    device, reason = runs_on(model), None
    kernels, kernel_note = describe_kernels(impl, device)
    eager_note = hold_to_stock(model, layers, impl)
    attachable = [layer for layer in layers if layer.rope is not None]
    for layer in attachable:
        layer.keep_as(getattr(model, KEPT_AS, None))  # after the trial, which is of the attention alone
    if automatic:
        choice = choose(
            length,
            size,
            kv_bytes_per_token=lambda each: kv_bytes_per_token(each, size, layers),
            free=least(model, free_memory(device), device),
            calibrated=calibration is not None,
            on_gpu=device.type == "cuda",
            preset=None if window is not None or length is None else shipped_for(model, length),
            asks_dca=trained.dual_chunks is not None,
        )
        trained = trained_on(config, choice.window or window, model=type(model).__name__)
        size = trained.window
        resolved, reason = trained.resolve(choice.method), choice.reason
        kv_tier = choice.kv_tier if kv_tier == "device" else kv_tier
        kv_dir = kv_dir if kv_tier in ("auto", "disk") else None
    resolved.check_layers(size, attachable)
    kv_tier, directory, tier_notes = prepare_tier(resolved, layers, kv_tier, kv_dir)
    ranks = ranks_of(model, layers, resolved.selects)
    shares = 1 if ranks is None else ranks.size
    maps = fitting(calibration, model, layers, ranks)
    if automatic and not resolved.uses_calibration:
        maps = None  # they fit, and "auto" found a method that does without
    attender = Attender(resolved, size, impl, calibration=maps, ranks=ranks)
    for layer in layers:
        if layer.rope is not None:
            attender.new_index(layer.index, layer.rope)  # refuses what does not run on ranks
            _check_angles(attender, layer.name, layer.rope)
    notes = [*preset_notes, *layer_notes(layers, attender), *trained.notes, *resolved.warnings(size), *tier_notes]
    notes += [note for note in (eager_note, kernel_note, wrapper_note(model_or_wrapper)) if note is not None]
    most = resolved.longest(size)
    if most is not None and length is not None and length > most:
        notes.append(
            f"length {length:,} is more than the {most:,} tokens that {resolved.name} is set for; take another method, "
            "or leave out the parameter that sets it"
        )
    if not model.can_generate():
        notes.append(
            f"{type(model).__name__} has no language-model head; for generate, extend the complete model "
            "(AutoModelForCausalLM)"
        )
    report = Report(
        model=type(model).__name__,
        method=resolved,
        window=size,
        original_window=trained.original,
        attached=tuple(describe(layer, attender.stored_rotations) for layer in attachable),
        stock=tuple(describe(layer, 1) for layer in layers if layer.rope is None),
        warnings=tuple(notes),
        kv_tier=kv_tier,
        kv_dir=directory,
        reason=reason,
        calibration=None if maps is None else f"scores reduced to {maps.reduced}, solver {maps.solver}",
        kernels=kernels,
        ranks=None if ranks is None else (ranks.rank, ranks.size),
        window_source=trained.source,
        decode=describe_decoding(model, attender, layers, kv_tier),
        heads_hold=resolved.heads_hold(
            size, [(layer.index, layer.heads * shares, layer.kv_heads * shares) for layer in attachable]
        ),
    )
    return report, attender, layers


def _check_angles(attender: Attender, layer: str, rope: Rope) -> None:
    """Raise ``AttachError`` if a layer's frequencies cannot be scaled, in a text of the window or a longer one."""
    try:
        attender.tables.angles(rope.table, attender.window + 1)
    except ValueError as error:
        raise AttachError(f"{layer}: {error}; pass other angles, such as longspan.PI(), or none") from error


def _method(method: str | Method | Angles | type[Method | Angles], angles: Angles | None) -> Method:
    if isinstance(method, str):
        if method.partition(":")[0] not in METHODS:
            raise LongspanError(no_method(method, ("auto",)))
        method = parse_method(method)
    elif isinstance(method, Angles):
        method = Full(angles=method)
    elif not isinstance(method, Method):
        raise LongspanError(f"method must be a name, a Method or Angles, not {type(method).__name__}")
    if angles is None:
        return method
    if not isinstance(angles, Angles):
        raise LongspanError(f"angles must be Angles such as longspan.YaRN(factor=4), not {type(angles).__name__}")
    if type(method.angles) not in (Angles, type(angles)):
        raise LongspanError(
            f"{method.name} is full attention under {method.angles}; angles={angles} would replace those"
        )
    return replace(method, angles=angles)
