"""A diagnosis as a page: tables of what was found, and the commands to copy."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from longspan.doctor.estimate import Estimate
from longspan.doctor.findings import Advice, Findings, ModelFacts
from longspan.doctor.fit import TimeRange, duration
from longspan.doctor.machine import Machine
from longspan.doctor.untouched import Untouched
from longspan.hf import Report
from longspan.rope import Angles
from longspan.terminal import Column, Sheet

_NEXT = "Next: longspan doctor MODEL --length 200k (MODEL is a model folder, a hub name, or 'bundled')"

_Row = tuple[str | Text, str]


def of(found: Findings, width: int) -> Iterator[RenderableType]:
    """The parts of the page, from top to bottom."""
    yield _table("This machine", _machine(found.machine))
    if found.model_facts is None:
        yield Text(f"\n{_NEXT}")
        return
    yield _table("The model", _model_facts(found.model_facts, found.report))
    if found.advice is None:
        return
    yield _table(f"Memory at {found.length:,} tokens", _memory(found))
    yield _table(f"Speed at {found.length:,} tokens", _speed(found))
    yield _table("Recommendation", _advice(found.advice, found.report))
    if found.advice.commands:
        yield Text("\nTo copy:")
    for command in found.advice.commands:
        yield Text(broken(command, width), overflow="fold", no_wrap=True)


def _table(title: str, rows: Iterator[_Row]) -> Sheet:
    return Sheet([Column("", style="bold"), Column("")], list(rows), title=f"\n{title}", headed=False)


def broken(command: str, width: int) -> str:
    """A command split into lines that a shell joins again, each no longer than ``width`` if its options allow that."""
    lines = [""]
    for part in command.split(" --"):
        part = part if lines == [""] else f"--{part}"
        if lines[-1] and len(f"  {lines[-1]} {part} \\") > width:
            lines.append(f"  {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}".strip() if len(lines) == 1 else f"{lines[-1]} {part}"
    return " \\\n".join(f"  {line}" for line in lines)


def size_of(count: int | None) -> str:
    """``1.5 GiB``, ``20.0 MiB`` or ``12 KiB``; ``unknown`` of None."""
    if count is None:
        return "unknown"
    if count >= 2**30:
        return f"{count / 2**30:,.1f} GiB"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def _machine(machine: Machine) -> Iterator[_Row]:
    yield "system", machine.system
    yield (
        "processor",
        f"{machine.processor}, cores for this process: {machine.cores}, threads of torch: {machine.threads}",
    )
    free = f"{size_of(machine.memory_free)} free of {size_of(machine.memory_total)}"
    yield "memory", free + (", by the limit of a container or a job" if machine.memory_limited else "")
    note = ", which is kept in memory: pass --kv-dir, a folder on a disk" if machine.disk_in_memory else ""
    yield "disk", f"{size_of(machine.disk_free)} free in {machine.disk}{note}"
    for gpu in machine.gpus:
        yield (
            "GPU",
            f"{gpu.name}, compute capability {gpu.capability}, {size_of(gpu.free)} free of {size_of(gpu.total)}",
        )
    if not machine.gpus:
        yield "GPU", "none that torch sees"
    for kind in machine.kernels:
        yield f"kernels {kind.name}", f"run, {kind.said}" if kind.run else f"do not run: {kind.said}"


def _model_facts(model_facts: ModelFacts, report: Report | None) -> Iterator[_Row]:
    yield "model", f"{model_facts.model} ({model_facts.family}), {model_facts.dtype} on {model_facts.device}"
    packed = f", packed {model_facts.form}" if model_facts.form else ""
    yield "weights", size_of(model_facts.weights) + packed
    if model_facts.refusal is not None:
        yield Text("cannot be extended", "red"), model_facts.refusal
        return
    yield "window", f"{model_facts.window:,} tokens ({model_facts.window_source})"
    if model_facts.dual_chunks is not None:
        yield "dual_chunk_attention_config", ", ".join(f"{k} {v}" for k, v in model_facts.dual_chunks.items())
    if model_facts.rope_scaling is not None:
        yield "scaled RoPE", ", ".join(f"{k} {v}" for k, v in model_facts.rope_scaling.items())
    yield "attached", f"{len(model_facts.attached)} layers, {len(model_facts.stock)} stay as they are"
    if report is not None:
        for warning in report.warnings:
            yield Text("note", "yellow"), warning


def _memory(found: Findings) -> Iterator[_Row]:
    needs = found.needs
    assert needs is not None
    yield "weights", f"{size_of(needs.weights)}, loaded"
    yield "keys and values", f"{size_of(needs.keys_and_values)}; up to half as much again while a store grows"
    if needs.stock:
        yield "other layers", size_of(needs.stock)
    yield "index", size_of(needs.index) if needs.index else "none"
    for fit in found.tiers:
        if fit.reason is not None:
            yield f"tier {fit.tier}", fit.reason
            continue
        held = max(fit.device if fit.tier == "device" else 0, fit.host, fit.disk)
        words = {True: "fits", False: "does not fit", None: "nobody knows whether it fits"}[fit.fits]
        line = f"{words}: {size_of(held)} of {size_of(fit.free)} free"
        if fit.longest is not None:
            line += f"; up to {fit.longest:,} tokens fit"
        yield f"tier {fit.tier}", line


def _speed(found: Findings) -> Iterator[_Row]:
    run, short = found.run, found.short_prompts
    assert short is not None and found.length
    if found.estimate is None:
        yield Text("no estimate", "yellow"), found.no_estimate or ""
    else:
        yield from _times(found.estimate, found.length)
    if run is not None:
        clock = "of the process's own time" if run.clock == "cpu" else "of time by the wall"
        times = "once" if run.passes == 1 else f"{run.passes} times"
        took = duration(sum(point.seconds for point in run.prefill_chunks))
        yield "measured", f"{run.length:,} tokens, {times}, read in {took} {clock}"
    yield "short prompts", _short(short)


def _times(estimate: Estimate, length: int) -> Iterator[_Row]:
    read = estimate.prefill_seconds
    yield (
        "reading",
        f"{_between(read)}, {length / read.high:,.0f} to {length / read.low:,.0f} tokens a second, "
        f"in prefill chunks of {estimate.prefill_chunk:,}; {estimate.growth} in the length",
    )
    yield "writing", f"{_between(estimate.token_seconds)} a token"
    for check in estimate.checks:
        of = (
            f"tokens {check.start:,} to {check.stop:,}" if check.what == "reading" else f"a token after {check.start:,}"
        )
        said = _between(TimeRange(check.low, check.high))
        yield "checked", f"{of}: {duration(check.seconds)}, estimated before: {said}"
    if not estimate.checks:
        yield "checked", "all of the text was read"


def _between(interval: TimeRange) -> str:
    return f"{duration(interval.low)} to {duration(interval.high)}"


def _short(short: Untouched) -> str:
    if short.difference is None:
        return "changed, also inside the window: this method does not promise that any row equals the stock model's"
    verdict = "untouched" if short.holds else "NOT untouched"
    rows = f"{short.exact:,} of {short.tokens:,}" if short.exact < short.tokens else f"{short.tokens:,}"
    more = ", and it changes those after them" if short.exact < short.tokens else ""
    return (
        f"{verdict}: logits of {rows} tokens inside the window differ from the model's own by "
        f"{short.difference:.0e} of the largest (rounding: up to {short.budget:.0e}){more}"
    )


def _advice(advice: Advice, report: Report | None) -> Iterator[_Row]:
    if advice.kv_tier is None:
        yield "none", advice.why
        return
    yield "method", advice.method
    if report is not None:
        own = report.method.parameters()
        if type(own["angles"]) is Angles:
            del own["angles"]  # the model's own
        yield "parameters", ", ".join(f"{key} {value}" for key, value in own.items() if value is not None) or "none"
    yield "tier", advice.kv_tier
    yield "why", advice.why
