"""The rotation ``R(p)`` of queries and keys, as one layer applies it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from longspan.deferred import torch
from longspan.rope.angles import Table
from longspan.rope.layout import KERNELS, Layout, as_complex, interleave, interleaved_order, viewable_as_complex

if TYPE_CHECKING:
    from torch import Tensor


Norm = Callable[["Tensor"], "Tensor"]
_BLOCK = 256  # tokens rotated at once on a CPU


@dataclass(eq=False)
class Rope:
    """The rotation of one layer: which channels rotate, in which layout, by which angles.

    Args:
        table: the angles.
        head_dim: ``D``.
        layout: ``"half"`` pairs channel ``k`` with ``k + r/2``; ``"interleaved"`` pairs ``2k`` with ``2k + 1``.
        start: first rotated channel (0 for leading or all, ``D - r`` for trailing).
        norm_q, norm_k: normalisation that the model applies *after* the rotation, or None.
    """

    table: Table
    head_dim: int
    layout: Layout = "half"
    start: int = 0
    norm_q: Norm | None = None
    norm_k: Norm | None = None

    @property
    def rotated(self) -> int:
        """``r``, the number of rotated channels."""
        return 2 * self.table.inv_freq.numel()

    def with_table(self, table: Table) -> Rope:
        return self if table is self.table else replace(self, table=table)

    @property
    def pairs(self) -> bool:
        """Whether ``paired`` and ``pair`` change anything."""
        return self.layout == "half" and self.norm_q is None and self.norm_k is None and self.start % 2 == 0

    def paired(self) -> Rope:
        """The same rotation of channels in the order that ``pair`` gives them."""
        return Rope(self.table, self.head_dim, "interleaved", self.start) if self.pairs else self

    def pair(self, x: Tensor) -> Tensor:
        """Queries or keys ``[..., D]`` with the channels that rotate together side by side.

        In that order a rotation is one product of complex numbers, three to seven times as fast as in halves. Scores
        do not depend on the order, so it is enough to bring in queries and keys alike; a normalisation after the
        rotation knows its channels by their place, and rules it out.
        """
        return interleave(x, self.start, self.start + self.rotated) if self.pairs else x

    @property
    def order(self) -> Tensor | None:
        """``[D]`` int64, the channels of ``x`` in the order of ``pair(x)``; None if that is ``x``."""
        return interleaved_order(self.head_dim, self.start, self.start + self.rotated) if self.pairs else None

    def rotate_q(self, q: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
        """Queries ``[B, H, T, D]`` rotated by cos, sin ``[T, r / 2]`` or ``[B, T, r / 2]``, into ``out`` if given."""
        return self.normed_q(rotate(q, cos, sin, layout=self.layout, start=self.start, out=out))

    def rotate_k(self, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Keys ``[B, Hkv, T, D]`` rotated by cos, sin ``[T, r / 2]`` or ``[B, T, r / 2]``."""
        return self.normed_k(rotate(k, cos, sin, layout=self.layout, start=self.start))

    def normed_q(self, q: Tensor) -> Tensor:
        """Queries ``[..., D]``, normalised if the model does that after the rotation."""
        return q if self.norm_q is None else self.norm_q(q)

    def normed_k(self, k: Tensor) -> Tensor:
        """Keys ``[..., D]``, normalised if the model does that after the rotation."""
        return k if self.norm_k is None else self.norm_k(k)


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
    kernel = KERNELS.get(x.device.type)
    if kernel is not None and kernel(x, (cos, sin), out, start, cos.shape[-1], (layout, layout)):
        return out
    if end - start < x.shape[-1]:
        out[..., :start], out[..., end:] = x[..., :start], x[..., end:]
    own, to = x[..., start:end], out[..., start:end]
    if layout == "interleaved" and x.dtype == cos.dtype and viewable_as_complex(own) and viewable_as_complex(to):
        torch.mul(as_complex(own), torch.complex(cos, sin), out=as_complex(to))
        return out
    step = _BLOCK if x.device.type == "cpu" else x.shape[2]
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


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> Tensor:
    """The same out of place, in fp32 at least."""
    end = start + 2 * cos.shape[-1]
    wide = x if x.dtype == torch.float64 else x.float()
    rotary = wide[..., start:end]
    if layout == "half":
        a, b = rotary.chunk(2, dim=-1)
        rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        if not viewable_as_complex(rotary):
            rotary = rotary.clone(memory_format=torch.contiguous_format)
        rotated = torch.view_as_real(as_complex(rotary) * torch.complex(cos, sin)).flatten(-2)
    if end - start < x.shape[-1]:
        rotated = torch.cat((wide[..., :start], rotated, wide[..., end:]), dim=-1)
    return rotated.to(x.dtype)
