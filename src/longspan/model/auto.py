"""``method="auto"``: which method a text of this length calls for on this model and this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longspan.machine.memory import SHARE
from longspan.memory import Tier
from longspan.methods import DCA, ESA, Full, LongHeads, Method
from longspan.model.describe import describe
from longspan.model.layer import Layer
from longspan.model.preset import Preset

CROSSOVER = 16  # windows up to which reading all keys takes at most twice what choosing takes (benchmarks/crossover.py)


@dataclass(frozen=True)
class MethodChoice:
    """A method and a tier, and why; and the window to declare, None for the model's own."""

    method: Method
    kv_tier: Tier
    reason: str
    window: int | None = None


def choose(
    length: int | None,
    window: int,
    *,
    kv_bytes_per_token: Callable[[Method], int],
    free: int | None,
    calibrated: bool,
    on_gpu: bool,
    preset: Preset | None = None,
) -> MethodChoice:
    """The method for a text.

    * up to the window: ``full``, which changes nothing;
    * as a preset has it, if there is one for this model and length;
    * up to ``CROSSOVER`` windows: ``dca``, which keeps every key;
    * beyond, for a length that is not known, or where keys and values do not fit into memory: one that selects, in
      linear time: ``esa`` with a calibration, ``longheads`` with the score that was measured best without one.

    Args:
        length: tokens of prompt and answer, or None if not known.
        window: the trained window in tokens.
        kv_bytes_per_token: the function of that name here, for a model: bytes by method.
        free: bytes of free memory where the model is, or None if not known.
        calibrated: whether a calibration was given.
        on_gpu: whether the model is on a GPU, so that the CPU's memory is a tier below it.
        preset: that of the model for this length, if longspan comes with one.
    """
    if length is not None and length <= window:
        return MethodChoice(Full(), "device", f"{length:,} tokens fit the window of {window:,}, so nothing changes")
    far: Method = ESA() if calibrated else LongHeads(score="bounds")
    how = "its reduced scores are calibrated" if calibrated else "it needs no calibration"
    if length is None:
        return MethodChoice(far, "device", f"the length is not known (pass length=), so a method in linear time; {how}")
    text = f"{length:,} tokens are {length / window:.1f} windows of {window:,}"
    method: Method = DCA() if length <= CROSSOVER * window else far
    declared = None
    if preset is not None and not calibrated:
        method, declared = preset.method.reaching(length), preset.window
        if method.selects:
            far, how = method, f"longspan's preset of {preset.model.name} has it"
    needed = length * kv_bytes_per_token(method.resolve(declared or window))
    if free is not None and needed > SHARE * free:
        declared = declared if method is far else None
        tier: Tier = "host" if on_gpu else "disk"
        room = (
            f"their keys and values take {needed / 2**30:.1f} GiB under {method.name}, of {free / 2**30:.1f} GiB free"
        )
        why = f"{text}, and {room}: they are kept on tier {tier!r} and selected from; {how}"
        return MethodChoice(far, tier, why, declared)
    if preset is not None and not calibrated:
        which = f"{preset.spec}{'' if declared is None else f' at a declared window of {declared:,}'}"
        why = f"longspan's preset of {preset.model.name}, measured at {preset.length:,} tokens, is {which}"
        return MethodChoice(method, "device", f"{text}, and {why}", declared)
    if method is not far:
        return MethodChoice(
            method,
            "device",
            f"{text}, and up to {CROSSOVER} windows every key is kept, at no more than twice the time of selection",
        )
    return MethodChoice(far, "device", f"{text}, and beyond {CROSSOVER} windows selection is faster; {how}")


def kv_bytes_per_token(method: Method, window: int, layers: Sequence[Layer]) -> int:
    """Bytes of keys and values for a token under a resolved method, over all layers whose cache grows."""
    own = method.stored_rotations(window)
    return sum(describe(layer, 1 if layer.rope is None else own).kv_bytes_per_token for layer in layers)
