"""Rotary positions: the model's own rotation ``R(p)`` and the scaled angles that can replace its plain ones.

Shapes: ``B`` batch, ``H`` heads, ``T`` tokens, ``D`` head size, ``r`` rotated channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from longspan.deferred import torch
from longspan.errors import check_count, check_number

if TYPE_CHECKING:
    from torch import Tensor


Layout = Literal["half", "interleaved"]
Turn = tuple["Tensor", "Tensor"]  # cos, sin
Norm = Callable[["Tensor"], "Tensor"]
_PIECE = 256  # tokens rotated at once on a CPU
_FEW = 4  # tokens whose channels are brought into another order by one operation, the slowest for many


class Table:
    """cos and sin by integer position, in fp32, grown on demand and shared by all layers with these angles.

    Args:
        inv_freq: ``[r / 2]`` radians a position.
        factor: multiplies cos and sin (YaRN's and longrope's attention scaling).
    """

    def __init__(self, inv_freq: Tensor, factor: float = 1.0) -> None:
        self.inv_freq = inv_freq.detach().float()
        self.factor = float(factor)
        none = self.inv_freq.new_empty(0, self.inv_freq.numel())
        self._held = none, none  # cos and sin; replaced as one, since threads share a table

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``positions`` (int64, CPU, ≥ 0) → cos, sin ``[*positions.shape, r / 2]``, on the angles' device."""
        cos, sin = self._held
        if positions.numel() == 0:
            empty = cos.new_empty(*positions.shape, self.inv_freq.numel())
            return empty, empty
        top = int(positions.max())
        if top >= cos.shape[0]:
            self._held = cos, sin = self._grown(max(top + 1, 2 * cos.shape[0]))
        positions = positions.to(self.inv_freq.device)
        return cos[positions], sin[positions]

    def _grown(self, size: int) -> tuple[Tensor, Tensor]:
        # The product in fp32 is what transformers computes, so the angles are the stock model's to the bit.
        phase = torch.arange(size, device=self.inv_freq.device).float()[:, None] * self.inv_freq[None, :]
        return phase.cos() * self.factor, phase.sin() * self.factor


def turn(table: Table, positions: Tensor, device: torch.device) -> Turn:
    """cos and sin at ``positions``, on ``device``: a model's layers may lie on several, its frequencies on one."""
    with torch.inference_mode(False):  # kept for later calls, which may be outside of it and follow gradients
        cos, sin = table(positions)
        return cos.to(device), sin.to(device)


class Rope:
    """The rotation of one layer: which channels turn, in which layout, by which angles.

    Args:
        table: the angles.
        head_dim: ``D``.
        layout: ``"half"`` pairs channel ``k`` with ``k + r/2``; ``"interleaved"`` pairs ``2k`` with ``2k + 1``.
        start: first rotated channel (0 for leading or all, ``D - r`` for trailing).
        norm_q, norm_k: normalisation that the model applies *after* the rotation, or None.
    """

    def __init__(
        self,
        table: Table,
        head_dim: int,
        layout: Layout = "half",
        start: int = 0,
        norm_q: Norm | None = None,
        norm_k: Norm | None = None,
    ) -> None:
        self.table, self.head_dim, self.layout, self.start = table, head_dim, layout, start
        self.norm_q, self.norm_k = norm_q, norm_k

    @property
    def rotated(self) -> int:
        """``r``, the number of rotated channels."""
        return 2 * self.table.inv_freq.numel()

    def with_table(self, table: Table) -> Rope:
        return Rope(table, self.head_dim, self.layout, self.start, self.norm_q, self.norm_k)

    @property
    def pairs(self) -> bool:
        """Whether ``paired`` and ``pair`` change anything."""
        return self.layout == "half" and self.norm_q is None and self.norm_k is None and self.start % 2 == 0

    def paired(self) -> Rope:
        """The same rotation of channels in the order that ``pair`` gives them."""
        return Rope(self.table, self.head_dim, "interleaved", self.start) if self.pairs else self

    def pair(self, x: Tensor) -> Tensor:
        """Queries or keys ``[..., D]`` with the channels that turn together side by side.

        In that order a rotation is one product of complex numbers, three to seven times as fast as in halves. Scores
        do not depend on the order, so it is enough to bring in queries and keys alike; a normalisation after the
        rotation knows its channels by their place, and rules it out.
        """
        if not self.pairs:
            return x
        few = x.dim() == 4 and x.shape[2] <= _FEW and x.device.type == "cpu"
        if few or torch.is_grad_enabled() and x.requires_grad:
            assert self.order is not None
            return x.index_select(-1, self.order.to(x.device))
        out, end = _tokens_first(x), self.start + self.rotated
        if self.rotated < x.shape[-1]:
            out[..., : self.start], out[..., end:] = x[..., : self.start], x[..., end:]
        own, to = x[..., self.start : end].unflatten(-1, (2, -1)), out[..., self.start : end]
        if x.dtype in (torch.float32, torch.float64) and _side_by_side(to):
            torch.complex(*own.unbind(-2), out=_complex(to))  # twice as fast as a copy
        else:
            to.unflatten(-1, (-1, 2)).copy_(own.transpose(-1, -2))
        return out

    @property
    def order(self) -> Tensor | None:
        """``[D]`` int64, the channels of ``x`` in the order of ``pair(x)``; None where that is ``x``."""
        return _order(self.head_dim, self.start, self.start + self.rotated) if self.pairs else None

    def turn_q(self, q: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
        """Queries ``[B, H, T, D]`` rotated by cos, sin ``[T, r / 2]`` or ``[B, T, r / 2]``, into ``out`` if given."""
        q = rotate(q, cos, sin, layout=self.layout, start=self.start, out=out)
        return self.norm_q(q) if self.norm_q else q

    def turn_k(self, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Keys ``[B, Hkv, T, D]`` rotated by cos, sin ``[T, r / 2]`` or ``[B, T, r / 2]``."""
        k = rotate(k, cos, sin, layout=self.layout, start=self.start)
        return self.norm_k(k) if self.norm_k else k


@lru_cache(maxsize=16)
def _order(size: int, start: int, end: int) -> Tensor:
    with torch.inference_mode(False):  # kept for later calls, which may be outside of it
        order = torch.arange(size)
        order[start:end] = order[start:end].unflatten(0, (2, -1)).T.flatten()
    return order


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, *, layout: Layout = "half", start: int = 0, out: Tensor | None = None
) -> Tensor:
    """Rotate channels ``start : start + r`` of ``x`` and leave the others as they are.

    The arithmetic is in fp32 (fp64 for fp64 input) whatever the dtype of ``x``, so a reduced dtype rounds once.

    Args:
        x: ``[B, H, T, D]``.
        cos, sin: ``[T, r / 2]``, ``[B, T, r / 2]`` or ``[B, H, T, r / 2]``.
        out: memory for the result, other than that of ``x``.
    """
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    if torch.is_grad_enabled() and x.requires_grad:
        return _rotated(x, cos, sin, layout, start)
    out = torch.empty_like(x) if out is None else out
    end = start + 2 * cos.shape[-1]
    if end - start < x.shape[-1]:
        out[..., :start], out[..., end:] = x[..., :start], x[..., end:]
    own, to = x[..., start:end], out[..., start:end]
    if layout == "interleaved" and x.dtype == cos.dtype and _side_by_side(own) and _side_by_side(to):
        torch.mul(_complex(own), torch.complex(cos, sin), out=_complex(to))
        return out
    step = _PIECE if x.device.type == "cpu" else x.shape[2]
    # Wide temporaries stay in the processor's cache and never have the size of x: two to three times faster.
    for first in range(0, x.shape[2], step):
        rows = slice(first, first + step)
        _rotate_into(to[:, :, rows], own[:, :, rows], cos[..., rows, :], sin[..., rows, :], layout)
    return out


def _rotate_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> None:
    if layout == "interleaved" or x.dtype not in (torch.float32, torch.float64):
        out.copy_(_rotated(x, cos, sin, layout, 0))
        return
    (a, b), (to_a, to_b) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    torch.mul(a, cos, out=to_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=to_b).addcmul_(a, sin)


def _tokens_first(x: Tensor) -> Tensor:
    """Memory for a tensor like ``x``, with tokens before heads where it has both: heads that share lie together."""
    if x.dim() != 4:
        return torch.empty_like(x)
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def _side_by_side(x: Tensor) -> bool:
    """Whether the channels can be seen as complex numbers where they lie."""
    return x.stride(-1) == 1 and x.storage_offset() % 2 == 0 and all(step % 2 == 0 for step in x.stride()[:-1])


def _complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> Tensor:
    """The same out of place, in fp32 at least."""
    end = start + 2 * cos.shape[-1]
    wide = x if x.dtype == torch.float64 else x.float()
    own = wide[..., start:end]
    if layout == "half":
        a, b = own.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        turned = torch.view_as_real(_complex(own.contiguous()) * torch.complex(cos, sin)).flatten(-2)
    if end - start < x.shape[-1]:
        turned = torch.cat((wide[..., :start], turned, wide[..., end:]), dim=-1)
    return turned.to(x.dtype)


# --- the angles axis -------------------------------------------------------------------------------------------------


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
        """The same angles, told to reach ``length`` tokens where they have to know and were not told."""
        return self

    def exact(self, window: int, total: int) -> bool:
        """Whether an input of ``total`` tokens sees the model's own angles."""
        return True

    def table(self, own: Table, window: int, total: int) -> Table:
        """The angles at a total length of ``total`` tokens, from the model's ``own``."""
        return own


def _check_fields(angles: Angles) -> None:
    """Make lengths ints and everything else ints or floats; raise ``ValueError`` where they are no such numbers."""
    for f in fields(angles):
        value, name = getattr(angles, f.name), f"{type(angles).__name__}: {f.name}"
        if value is not None:
            found = check_count(name, value) if f.name == "target_length" else check_number(name, value)
            object.__setattr__(angles, f.name, found)  # frozen for everybody else


@dataclass(frozen=True)
class _Scaled(Angles):
    scale: float | None = None
    target_length: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.scale is not None and self.target_length is not None:
            raise ValueError(f"{type(self).__name__}: give scale or target_length, not both")
        if self.scale is not None and not 1 <= self.scale < math.inf:
            raise ValueError(f"{type(self).__name__}: scale must be ≥ 1 and finite, not {self.scale}")

    def reaching(self, length: int) -> Angles:
        return replace(self, target_length=length) if self.scale is None and self.target_length is None else self

    def resolve(self, window: int) -> Angles:
        if self.scale is not None:
            return self
        target = 4 * window if self.target_length is None else self.target_length
        return replace(self, scale=max(1.0, target / window), target_length=None)

    def exact(self, window: int, total: int) -> bool:
        return self.scale == 1


@dataclass(frozen=True)
class PI(_Scaled):
    """Position Interpolation (Chen et al., 2023): every position divided by ``scale`` (default 4: four windows)."""

    def table(self, own: Table, window: int, total: int) -> Table:
        assert self.scale is not None
        return Table(own.inv_freq.double() / self.scale, own.factor)


@dataclass(frozen=True)
class NTK(_Scaled):
    """NTK-aware scaling (bloc97, 2023): the base times ``scale^(r / (r - 2))`` (default scale 4)."""

    def table(self, own: Table, window: int, total: int) -> Table:
        assert self.scale is not None
        return Table(_ntk(own.inv_freq, self.scale), own.factor)


@dataclass(frozen=True)
class DynamicNTK(Angles):
    """Dynamic NTK (emozilla, 2023): as NTK, with ``scale = factor · n / L - (factor - 1)`` beyond the window.

    The scale follows the total length ``n`` at each call. Keys are kept unrotated and turned under the current base,
    so one call over n tokens equals transformers' ``rope_type="dynamic"`` at n, and so does every decoding step.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_fields(self)
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"DynamicNTK: factor must be ≥ 1 and finite, not {self.factor}")

    @property
    def dynamic(self) -> bool:
        return True

    def exact(self, window: int, total: int) -> bool:
        return total <= window

    def table(self, own: Table, window: int, total: int) -> Table:
        if total <= window:
            return own
        return Table(_ntk(own.inv_freq, self.factor * total / window - (self.factor - 1)), own.factor)


@dataclass(frozen=True)
class YaRN(Angles):
    """YaRN (Peng et al., 2023): slow frequencies interpolated, fast ones kept, and cos and sin times a factor.

    Between ``beta_fast`` and ``beta_slow`` turns in the trained window the two are blended linearly by channel; cos and
    sin are multiplied by ``attention_factor``, ``0.1 · ln(factor) + 1`` unless given. ``factor`` defaults to
    ``target_length / window``, that to four windows.
    """

    factor: float | None = None
    target_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.factor is not None and self.target_length is not None:
            raise ValueError("YaRN: give factor or target_length, not both")
        if self.factor is not None and not 1 <= self.factor < math.inf:
            raise ValueError(f"YaRN: factor must be ≥ 1 and finite, not {self.factor}")
        if self.attention_factor is not None and not 0 < self.attention_factor < math.inf:
            raise ValueError(f"YaRN: attention_factor must be > 0 and finite, not {self.attention_factor}")
        if not 0 < self.beta_slow < self.beta_fast < math.inf:
            raise ValueError(f"YaRN: 0 < beta_slow < beta_fast is broken by {self.beta_slow}, {self.beta_fast}")

    def reaching(self, length: int) -> Angles:
        return replace(self, target_length=length) if self.factor is None and self.target_length is None else self

    def resolve(self, window: int) -> Angles:
        factor = self.factor
        if factor is None:
            factor = max(1.0, (4 * window if self.target_length is None else self.target_length) / window)
        attention = 0.1 * math.log(factor) + 1.0 if self.attention_factor is None else self.attention_factor
        return replace(self, factor=factor, target_length=None, attention_factor=attention)

    def exact(self, window: int, total: int) -> bool:
        return self.factor == 1 and self.attention_factor == 1

    def table(self, own: Table, window: int, total: int) -> Table:
        assert self.factor is not None and self.attention_factor is not None
        freq = own.inv_freq.double()
        half = freq.numel()
        # The log of a channel's turns in the window falls linearly with the channel; the borders lie on that line.
        # Where the config already scales the angles, the line through the first and last channel stands in for it.
        line = torch.log(window * freq / (2 * math.pi))
        slope = float(line[-1] - line[0]) / max(half - 1, 1)
        low = max(math.floor((math.log(self.beta_fast) - float(line[0])) / slope), 0)
        high = min(math.ceil((math.log(self.beta_slow) - float(line[0])) / slope), 2 * half - 1)
        channel = torch.arange(half, dtype=torch.float64, device=freq.device)
        interpolated = ((channel - low) / max(high - low, 0.001)).clamp(0, 1)
        blended = freq / self.factor * interpolated + freq * (1 - interpolated)
        return Table(blended, own.factor * self.attention_factor)


def _ntk(inv_freq: Tensor, scale: float) -> Tensor:
    # inv_freq[k] = base^(-2k/r), so base · scale^(r/(r-2)) multiplies channel k by scale^(-2k/(r-2)).
    half = inv_freq.numel()
    if half < 2:
        raise ValueError("NTK scaling needs at least 4 rotated channels a head")
    exponent = torch.arange(half, dtype=torch.float64, device=inv_freq.device) / (half - 1)
    return inv_freq.double() * scale**-exponent
