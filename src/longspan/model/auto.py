"""``method="auto"``: which method a text of this length calls for on this model and this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
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
    asks_dca: bool = False,
) -> MethodChoice:
    """The method for a text.

    * up to the window: ``full``, which changes nothing;
    * as a preset has it, if there is one for this model and length;
    * up to ``CROSSOVER`` windows: ``dca``, which keeps every key;
    * for a length that is not known, if the model's config asks for it: ``dca``;
    * beyond, or for a length that is not known: ``esa`` with ``share="group"``, which found most in real texts of the
      methods in linear time (``docs/real-models.md``); with a calibration, ``esa`` with its reduced scores;
    * if keys and values do not fit into memory: a method whose scores read few bytes of each key, so that most keys may
      stay on a tier below: ``longheads`` by bounds, in chunks of 16 tokens; with a calibration, ``esa``.

    Args:
        length: tokens of prompt and answer, or None if not known.
        window: the trained window in tokens.
        kv_bytes_per_token: the function of that name here, for a model: bytes by method.
        free: bytes of free memory where the model is, or None if not known.
        calibrated: whether a calibration was given.
        on_gpu: whether the model is on a GPU, so that the CPU's memory is a tier below it.
        preset: that of the model for this length, if longspan comes with one.
        asks_dca: whether the model's config has chunks for DCA.
    """
    if length is not None and length <= window:
        return MethodChoice(Full(), "device", f"{length:,} tokens fit the window of {window:,}, so nothing changes")
    far: Method = ESA() if calibrated else ESA(share="group")
    how = "its reduced scores are calibrated" if calibrated else "of these it finds most in real texts"
    if length is None and asks_dca:
        return MethodChoice(
            DCA(), "device", "the length is not known (pass length=), and the model's config asks for dca"
        )
    if length is None:
        return MethodChoice(far, "device", f"the length is not known (pass length=), so a method in linear time; {how}")
    text = f"{length:,} tokens are {length / window:.1f} windows of {window:,}"
    choice = MethodChoice(far, "device", f"{text}, and beyond {CROSSOVER} windows selection is faster; {how}")
    if preset is not None and not calibrated:
        which = f"{preset.spec}{'' if preset.window is None else f' at a declared window of {preset.window:,}'}"
        why = f"longspan's preset of {preset.model.name}, measured at {preset.length:,} tokens, is {which}"
        choice = MethodChoice(preset.method.reaching(length), "device", f"{text}, and {why}", preset.window)
    elif length <= CROSSOVER * window:
        every = f"up to {CROSSOVER} windows every key is kept, at no more than twice the time of selection"
        choice = MethodChoice(DCA(), "device", f"{text}, and {every}")
    needed = length * kv_bytes_per_token(choice.method.resolve(choice.window or window))
    if free is None or needed <= SHARE * free:
        return choice
    small: Method = ESA() if calibrated else in_short_chunks(window)
    full = f"{text}, and their keys and values take {needed / 2**30:.1f} GiB under {choice.method.name}, of "
    full += f"{free / 2**30:.1f} GiB free"
    if length * kv_bytes_per_token(small.resolve(window)) <= SHARE * free:
        return MethodChoice(small, "device", f"{full}, and less under {small.name}")
    tier: Tier = "host" if on_gpu else "disk"
    how = how if calibrated else "its scores read few bytes of each key"
    return MethodChoice(small, tier, f"{full}: they are kept on tier {tier!r} and selected from; {how}")


def in_short_chunks(window: int) -> LongHeads:
    """LongHeads by bounds in chunks of 16 tokens, of which real models find more than in those of ``L / 16``."""
    return LongHeads(chunk_length=min(16, max(window // 16, 1)), score="bounds")


def kv_bytes_per_token(method: Method, window: int, layers: Sequence[Layer]) -> int:
    """Bytes of keys and values for a token under a resolved method, over all layers whose cache grows."""
    own = method.stored_rotations(window)
    return sum(describe(layer, 1 if layer.rope is None else own).kv_bytes_per_token for layer in layers)


def tell(words: str) -> None:
    """Say on stderr what was chosen and why; a log that is full or closed ends nothing."""
    with suppress(OSError):
        print(f"longspan auto: {words}", file=sys.stderr)
