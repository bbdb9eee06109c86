"""The angles of rotary positions: the model's own frequencies, and scaled ones that can replace them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from longspan.deferred import torch
from longspan.errors import LongspanError, check_count, check_number

if TYPE_CHECKING:
    from torch import Tensor


CosSin = tuple["Tensor", "Tensor"]  # cos and sin of the angles
_ROWS = 1 << 14  # positions whose angles are computed at once, so that fp64 takes little memory


class Table:
    """cos and sin by integer position, in fp32, grown on demand and shared by all layers with these angles.

    Args:
        inv_freq: ``[r / 2]`` radians a position; negative if a model turns the other way.
        factor: multiplies cos and sin (YaRN's and longrope's attention scaling).
        window: positions before it have the angles of the stock model to the bit, all if None; see ``phases``.
    """

    def __init__(self, inv_freq: Tensor, factor: float = 1.0, window: int | None = None) -> None:
        self.inv_freq = inv_freq.detach().float()
        self.factor, self.window = float(factor), window
        none = self.inv_freq.new_empty(0, self.inv_freq.numel())
        self._cos_sin = none, none  # cos and sin; replaced as one, since threads share a table

    def __call__(self, positions: Tensor | slice, most: int | None = None) -> tuple[Tensor, Tensor]:
        """``positions`` (int64, ≥ 0) → cos, sin ``[*positions.shape, r / 2]``, on the angles' device.

        Of a slice ``start : stop`` they are views, ``[stop - start, r / 2]``. Positions on another device than the CPU
        come with the ``most`` that they may be, for which it is not waited then.
        """
        cos, sin = self._cos_sin
        if isinstance(positions, slice):
            size = positions.stop
        else:
            size = int(positions.max() if most is None else most) + 1 if positions.numel() else 0
            positions = positions.to(self.inv_freq.device)
        if size > cos.shape[0]:
            self._cos_sin = cos, sin = self._grown(cos, sin, max(size, 2 * cos.shape[0]))
        return cos[positions], sin[positions]

    def _grown(self, cos: Tensor, sin: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The same cos and sin with ``size`` rows in all."""
        known, longer = cos.shape[0], [x.new_empty(size, x.shape[1]) for x in (cos, sin)]
        for new, old in zip(longer, (cos, sin), strict=True):
            new[:known] = old
        for first in range(known, size, _ROWS):
            phase = phases(first, min(first + _ROWS, size), self.inv_freq, self.window)
            for new, function in zip(longer, (torch.cos, torch.sin), strict=True):
                function(phase, out=new[first : first + _ROWS]).mul_(self.factor)
        return longer[0], longer[1]


def phases(start: int, stop: int, inv_freq: Tensor, window: int | None) -> Tensor:
    """The angles of the positions ``start : stop`` in radians, fp32 ``[stop - start, r / 2]``, up to whole turns.

    A product in fp32, as transformers computes it, is rounded by up to ``p / 2^24`` radians at position ``p``: 0.25 at
    4 million. Positions before ``window`` have it, so that their angles are the stock model's to the bit; those from
    ``window`` on have the exact product, rounded once, by 2e-7 radians at any position.

    Args:
        inv_freq: ``[r / 2]`` radians a position, fp32.
        window: None for fp32 products at every position.
    """
    border = stop if window is None else min(max(start, window), stop)
    near, far = (torch.arange(a, b, device=inv_freq.device)[:, None] for a, b in ((start, border), (border, stop)))
    turns = far.double() * (inv_freq.double() / (2 * math.pi))
    return torch.cat((near.float() * inv_freq, ((turns - turns.round()) * (2 * math.pi)).float()))


def cos_sin(table: Table, positions: Tensor | slice, device: torch.device, most: int | None = None) -> CosSin:
    """cos and sin at ``positions`` (int64; or a slice), ``[*positions.shape, r / 2]`` on ``device``; see ``Table``.

    The layers of a model may lie on several devices, its frequencies on one.
    """
    with torch.inference_mode(False):  # kept for later calls, which may be outside of it and follow gradients
        cos, sin = table(positions, most)
        return (cos, sin) if cos.device == device else (cos.to(device), sin.to(device))


@dataclass(frozen=True)
class Angles:
    """The model's own angles, unchanged. Subclasses scale them."""

    @property
    def dynamic(self) -> bool:
        """Whether the angles follow the total length, so that keys must be kept unrotated."""
        return False

    def resolve(self, window: int) -> Angles:
        """The same angles with every default filled in for a model of this window."""
        return self

    def reaching(self, length: int) -> Angles:
        """The same angles, told to reach ``length`` tokens if they have to know and were not told."""
        return self

    def longest(self, window: int) -> int | None:
        """The longest text in tokens that resolved angles are set for; None if they set no limit."""
        return None

    def exact(self, window: int, total: int) -> bool:
        """Whether an input of ``total`` tokens sees the model's own angles."""
        return True

    def table(self, own: Table, window: int, total: int) -> Table:
        """The angles at a total length of ``total`` tokens, from the model's ``own``; exact beyond the window."""
        return Table(own.inv_freq, own.factor, window)


def _check_fields(angles: Angles, scale: str) -> None:
    """Make lengths ints and everything else ints or floats; raise ``ValueError`` if they are no such numbers.

    The field named ``scale`` is 1 or more, and given in place of a length.
    """
    for f in fields(angles):
        value, name = getattr(angles, f.name), f"{type(angles).__name__}: {f.name}"
        if value is not None:
            found = check_count(name, value) if f.name == "target_length" else check_number(name, value)
            object.__setattr__(angles, f.name, found)  # frozen for everybody else
    if (value := getattr(angles, scale)) is not None:
        if getattr(angles, "target_length", None) is not None:
            raise LongspanError(f"{type(angles).__name__}: give {scale} or target_length, not both")
        if not 1 <= value < math.inf:
            raise LongspanError(f"{type(angles).__name__}: {scale} must be ≥ 1 and finite, not {value}")


@dataclass(frozen=True)
class _Scaled(Angles):
    scale: float | None = None
    target_length: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self, "scale")

    def reaching(self, length: int) -> Angles:
        return replace(self, target_length=length) if self.scale is None and self.target_length is None else self

    def resolve(self, window: int) -> Angles:
        if self.scale is not None:
            return self
        target = 4 * window if self.target_length is None else self.target_length
        return replace(self, scale=max(1.0, target / window), target_length=None)

    def longest(self, window: int) -> int | None:
        assert self.scale is not None
        return round(self.scale * window)

    def exact(self, window: int, total: int) -> bool:
        return self.scale == 1


@dataclass(frozen=True)
class PI(_Scaled):
    """Position Interpolation (Chen et al., 2023): every position divided by ``scale`` (default 4: four windows)."""

    def table(self, own: Table, window: int, total: int) -> Table:
        assert self.scale is not None
        return Table(own.inv_freq.double() / self.scale, own.factor, window)


@dataclass(frozen=True)
class NTK(_Scaled):
    """NTK-aware scaling (bloc97, 2023): the base times ``scale^(r / (r - 2))`` (default scale 4)."""

    def table(self, own: Table, window: int, total: int) -> Table:
        assert self.scale is not None
        return Table(_ntk(own.inv_freq, self.scale), own.factor, window)


@dataclass(frozen=True)
class DynamicNTK(Angles):
    """Dynamic NTK (emozilla, 2023): as NTK, with ``scale = factor · n / L - (factor - 1)`` beyond the window.

    The scale follows the total length ``n`` at each call. Keys are kept unrotated and rotated under the current base,
    so one call over n tokens equals transformers' ``rope_type="dynamic"`` at n, and so does every decoding step.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_fields(self, "factor")

    @property
    def dynamic(self) -> bool:
        return True

    def exact(self, window: int, total: int) -> bool:
        return total <= window

    def table(self, own: Table, window: int, total: int) -> Table:
        if total <= window:
            return own
        freq = _ntk(own.inv_freq, self.factor * total / window - (self.factor - 1))
        return Table(freq, own.factor, window)


@dataclass(frozen=True)
class YaRN(Angles):
    """YaRN (Peng et al., 2023): slow frequencies interpolated, fast ones kept, and cos and sin times a factor.

    Between ``beta_fast`` and ``beta_slow`` rotations in the trained window the two are blended linearly by channel; cos
    and sin are multiplied by ``attention_factor``, ``0.1 · ln(factor) + 1`` unless given. ``factor`` defaults to
    ``target_length / window``, that to four windows.
    """

    factor: float | None = None
    target_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _check_fields(self, "factor")
        if self.attention_factor is not None and not 0 < self.attention_factor < math.inf:
            raise LongspanError(f"YaRN: attention_factor must be > 0 and finite, not {self.attention_factor}")
        if not 0 < self.beta_slow < self.beta_fast < math.inf:
            raise LongspanError(f"YaRN: 0 < beta_slow < beta_fast is broken by {self.beta_slow}, {self.beta_fast}")

    def reaching(self, length: int) -> Angles:
        return replace(self, target_length=length) if self.factor is None and self.target_length is None else self

    def resolve(self, window: int) -> Angles:
        factor = self.factor
        if factor is None:
            factor = max(1.0, (4 * window if self.target_length is None else self.target_length) / window)
        attention = 0.1 * math.log(factor) + 1.0 if self.attention_factor is None else self.attention_factor
        return replace(self, factor=factor, target_length=None, attention_factor=attention)

    def longest(self, window: int) -> int | None:
        assert self.factor is not None
        return round(self.factor * window)

    def exact(self, window: int, total: int) -> bool:
        return self.factor == 1 and self.attention_factor == 1

    def table(self, own: Table, window: int, total: int) -> Table:
        assert self.factor is not None and self.attention_factor is not None
        freq, half = own.inv_freq.double(), _turning(own.inv_freq, "YaRN")
        # The log of a channel's rotations in the window falls linearly with the channel; the borders lie on that line.
        # If the config already scales the angles, the line through the first and last channel stands in for it.
        line = torch.log(window * freq[:half].abs() / (2 * math.pi))
        slope = float(line[-1] - line[0]) / (half - 1)
        low = max(math.floor((math.log(self.beta_fast) - float(line[0])) / slope), 0)
        high = min(math.ceil((math.log(self.beta_slow) - float(line[0])) / slope), 2 * half - 1)
        channel = torch.arange(freq.numel(), dtype=torch.float64, device=freq.device)
        # In windows of a few tokens high < low: the ramp falls then, as in the released code and in transformers.
        interpolated = ((channel - low) / (high - low or 0.001)).clamp(0, 1)
        blended = freq / self.factor * interpolated + freq * (1 - interpolated)
        return Table(blended, own.factor * self.attention_factor, window)


def _ntk(inv_freq: Tensor, scale: float) -> Tensor:
    # inv_freq[k] = base^(-2k/r), so base · scale^(r/(r-2)) multiplies channel k by scale^(-2k/(r-2)).
    exponent = torch.arange(inv_freq.numel(), dtype=torch.float64, device=inv_freq.device)
    return inv_freq.double() * scale ** -(exponent / (_turning(inv_freq, "NTK scaling") - 1))


def _turning(inv_freq: Tensor, what: str) -> int:
    """How many pairs of channels turn, two at least; the last ones may have frequency 0 (Gemma 4)."""
    count = int(inv_freq.count_nonzero())
    if count < 2:
        raise LongspanError(f"{what} needs at least 4 rotated channels a head")
    return count
