"""``longspan.diagnose``: will it fit, how fast, which method?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

import torch
from transformers import PreTrainedModel

from longspan.calibration import Calibration
from longspan.choosing.base import Choosing
from longspan.doctor import memory, untouched
from longspan.doctor.diagnosis import Diagnosis
from longspan.doctor.estimate import Estimate, estimated
from longspan.doctor.findings import Advice, ModelFacts
from longspan.doctor.fit import PREFILL_CHUNK, plan
from longspan.doctor.machine import CPU, look
from longspan.doctor.measuring import FIRST, NoEstimateError, Run, Say, measure
from longspan.errors import AttachError, LongspanError, check_count, check_number
from longspan.hf import Report, extended
from longspan.hf.attach import examine
from longspan.hf.calibration.check import dtype_name, fitting
from longspan.hf.preset import named, shipped_for
from longspan.machine.memory import free_memory
from longspan.memory import Tier
from longspan.methods import Method
from longspan.methods.parse import parse_method, written
from longspan.model.auto import MethodChoice, choose, kv_bytes_per_token
from longspan.model.layer import Layer
from longspan.model.parallel import split_reason
from longspan.model.placement import runs_on
from longspan.model.unwrap import module_of
from longspan.model.window import rope_types
from longspan.selection import Everything
from longspan.weights import PACKED_AS

WINDOWS = 8  # of a text whose length was not given


@dataclass(frozen=True)
class _Asked:
    """The arguments of ``diagnose``; see there."""

    method: str | Method
    window: int | None
    length: int | None
    calibration: Calibration | str | Path | None
    kv_dir: str | os.PathLike[str] | None
    seconds: float | None
    say: Say
    name: str
    options: str


def diagnose(
    model: PreTrainedModel | None = None,
    *,
    length: int | None = None,
    method: str | Method = "auto",
    window: int | None = None,
    calibration: Calibration | str | Path | None = None,
    kv_dir: str | os.PathLike[str] | None = None,
    seconds: float | None = None,
    say: Say | None = None,
    name: str = "MODEL",
    options: str = "",
) -> Diagnosis:
    """Look at a machine and a model: whether a text of some length fits, how fast it is read, and by which method.

    The model reads a part of such a text, beyond its window if the text is longer, and is left as it was: for a small
    model that takes seconds, for others minutes. Times are measured on as many threads as torch has; on one thread of a
    CPU by the process's own time, which leaves out what other programs had.

    Args:
        model: a causal transformers model that is not extended; without one only the machine is looked at.
        length: tokens of the longest prompt and its answer; eight windows unless given.
        method: a name or a preset's file, as ``longspan.extend`` takes it, or a method; ``"auto"`` chooses one.
        window, calibration: as ``longspan.extend`` takes them.
        kv_dir: the folder for the tier ``"disk"``; the system's folder for temporary files unless given.
        seconds: the most that measuring may take; if it takes more there is no estimate, and nothing is recommended.
            No limit unless given.
        say: is told, in lines, how long measuring will take and how far it is.
        name: the model in the commands to copy.
        options: further options of these commands, such as ``--dtype bfloat16``.

    Raises:
        LongspanError: the length or a parameter cannot be, or the model is extended already. A model that cannot be
            extended raises nothing: the diagnosis has the reason.
    """
    model = None if model is None else module_of(model)
    if model is not None and (reason := split_reason(model)) is not None:
        raise LongspanError(
            f"{reason}, and the doctor measures a model in one process; load it without tp_plan, or run the "
            "model and time it yourself"
        )
    machine = look(kv_dir)
    if model is None:
        return Diagnosis(machine)
    if length is not None:
        check_count("length", length)
    if seconds is not None and check_number("seconds", seconds) <= 0:
        raise LongspanError(f"seconds must be more than 0, not {seconds}")
    method, window, _ = named(model, method, window=window, angles=None, length=length)
    asked = _Asked(method, window, length, calibration, kv_dir, seconds, say or (lambda line: None), name, options)
    try:
        stock, _, layers = examine(model, "full", window=window)
    except AttachError as error:
        return Diagnosis(machine, _model_facts(model, None, str(error)))
    return _examined(Diagnosis(machine, _model_facts(model, stock, None)), model, stock, layers, asked)


def _model_facts(model: PreTrainedModel, stock: Report | None, refusal: str | None) -> ModelFacts:
    config = model.config.get_text_config(decoder=True)
    scaled = [dict(x) for x in rope_types(config) if x.get("rope_type", "default") != "default"]
    return ModelFacts(
        model=type(model).__name__,
        family=str(config.model_type),
        dtype=dtype_name(model),
        form=str(getattr(model, PACKED_AS, "")),
        device=str(model.device),
        weights=memory.weights_of(model),
        window=None if stock is None else stock.window,
        window_source=None if stock is None else stock.window_source,
        attached=() if stock is None else tuple(layer.index for layer in stock.attached),
        stock=() if stock is None else tuple(layer.index for layer in stock.stock),
        dual_chunks=getattr(config, "dual_chunk_attention_config", None),
        rope_scaling=scaled[0] if scaled else None,
        refusal=refusal,
    )


def _examined(
    known: Diagnosis, model: PreTrainedModel, stock: Report, layers: Sequence[Layer], asked: _Asked
) -> Diagnosis:
    length = asked.length or WINDOWS * stock.window
    device = runs_on(model)
    on_gpu, free = device.type != "cpu", free_memory(device)
    choice = _choice(model, stock.window, layers, asked, length, free, on_gpu)
    asked = replace(asked, window=choice.window or asked.window)
    calibration = fitting(asked.calibration, model, layers)
    # As with ``extend``: one that "auto" has no use for is left out, and a method that was named says so itself.
    if asked.method == "auto" and not choice.method.uses_calibration:
        calibration = None
    try:
        report, _, _ = examine(model, choice.method, window=asked.window, calibration=calibration, length=length)
    except AttachError as error:
        return Diagnosis(known.machine, _model_facts(model, stock, str(error)))
    sizes = memory.shapes(layers, report.method.stored_rotations(report.window))
    reduced = _reduced_size(report.method, report.window, calibration)
    need = memory.needs(
        model, report.method, sizes, length=length, window=report.window, reduced=reduced, on_gpu=on_gpu
    )
    held = memory.tiers(
        need,
        selects=report.method.selects,
        on_gpu=on_gpu,
        device_free=free,
        host_free=free_memory(CPU),
        disk_free=known.machine.disk_free,
    )
    advice = _advice(choice, held, asked, length, report.method.longest(report.window))
    run, estimate, no_estimate = None, None, advice.why
    if advice.kv_tier is not None:
        with extended(
            model, choice.method, window=asked.window, calibration=calibration, length=length, kv_tier=advice.kv_tier,
            kv_dir=asked.kv_dir if advice.kv_tier == "disk" else None,
        ):  # fmt: skip
            run, estimate, no_estimate = _timed(model, device, length, report, asked)
    short = untouched.check(
        model,
        choice.method,
        report,
        window=asked.window,
        calibration=calibration,
        length=length,
        tokens=min(stock.window, FIRST if run is None else max(run.length, FIRST), PREFILL_CHUNK),
        device=device,
    )
    return Diagnosis(
        machine=known.machine,
        model_facts=known.model_facts,
        length=length,
        report=report,
        needs=need,
        tiers=held,
        run=run,
        estimate=estimate,
        no_estimate=None if estimate is not None else no_estimate,
        short_prompts=short,
        advice=advice if estimate is not None else replace(advice, kv_tier=None, why=no_estimate, commands=()),
    )


def _timed(
    model: PreTrainedModel, device: torch.device, length: int, report: Report, asked: _Asked
) -> tuple[Run | None, Estimate | None, str]:
    """What was measured, the estimate, and why there is none."""
    run = None
    try:
        dense = isinstance(report.method.selection(report.window), Everything)
        measured = plan(length, report.window, dense=dense)
        run = measure(model, device, measured, asked.seconds, asked.say)
        return run, estimated(run, measured), ""
    except NoEstimateError as error:
        return run, None, str(error)


def _reduced_size(method: Method, window: int, calibration: Calibration | None) -> int | None:
    """``d'`` of the keys that scores are made from; None if those are the keys themselves."""
    selection = method.selection(window)
    return selection.reduced_size(calibration) if calibration is not None and isinstance(selection, Choosing) else None


def _choice(
    model: PreTrainedModel,
    window: int,
    layers: Sequence[Layer],
    asked: _Asked,
    length: int,
    free: int | None,
    on_gpu: bool,
) -> MethodChoice:
    """The method that was named, or the one that ``"auto"`` takes."""
    if asked.method != "auto":
        named = parse_method(asked.method) if isinstance(asked.method, str) else asked.method
        return MethodChoice(named, "device", "it was named")
    return choose(
        length,
        window,
        kv_bytes_per_token=lambda method: kv_bytes_per_token(method, window, layers),
        free=free,
        calibrated=asked.calibration is not None,
        on_gpu=on_gpu,
        preset=None if asked.window is not None else shipped_for(model, length),
    )


def _advice(choice: MethodChoice, held: tuple[memory.Fit, ...], asked: _Asked, length: int, most: int | None) -> Advice:
    """The first tier that holds it, from the one on that the choice named.

    Args:
        most: tokens that the method is set for; None if it sets no limit.
    """
    names = [fit.tier for fit in held]
    usable = [fit for fit in held[names.index(choice.kv_tier) :] if fit.reason is None]
    tier = next((fit for fit in usable if fit.fits is not False), None)
    spec = written(choice.method)
    if most is not None and length > most:  # a document and the server refuse it
        out = "take auto, or leave out the parameter that sets it"
        return Advice(spec, None, f"{spec} is set for {most:,} tokens, fewer than the {length:,} asked for; {out}", ())
    if tier is None:
        longest = max((fit.longest or 0 for fit in held if fit.reason is None), default=0)
        why = f"{length:,} tokens fit into no tier of this machine; up to {longest:,} do"
        return Advice(spec, None, why, ())
    why = "; ".join(_why(choice, tier))
    return Advice(spec, tier.tier, why, tuple(_commands(asked, choice.method, tier.tier)))


def _why(choice: MethodChoice, tier: memory.Fit) -> Iterator[str]:
    yield choice.reason
    if tier.tier != "device":
        yield f"keys and values do not fit on the tier device, and they do on {tier.tier}"
    elif tier.fits is None:
        yield "this system does not say how much memory is free"
    else:
        yield "its keys and values fit into the free memory of the model's device"


def _commands(asked: _Asked, method: Method, tier: Tier) -> Iterator[str]:
    options = f"--model {quote(asked.name)} --method {quote(written(method))}"
    if asked.window is not None:
        options += f" --window {asked.window}"
    if isinstance(asked.calibration, (str, Path)) and method.uses_calibration:  # others refuse one
        options += f" --calibration {quote(str(asked.calibration))}"
    if asked.options:
        options += f" {asked.options}"
    place = "" if tier == "device" else f" --kv-tier {tier}"
    if tier == "disk" and asked.kv_dir is not None:
        place += f" --kv-dir {quote(os.fspath(asked.kv_dir))}"
    yield f"longspan generate {options}{place} --file TEXT --prompt QUESTION"
    if tier != "host":
        yield f"longspan read TEXT {options} --out DOCUMENT"  # a document lies on disk in any case
