"""Numbers rounded to codes, by the least squares of each group."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.errors import LongspanError
from longspan.kernels.linear.contract import GROUP, PackedMatrix, nibbles

_LARGEST = {4: 15, 8: 127}
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)  # of a group's range: a smaller one clips its ends, and rounds the rest finer
_FEW_DIGITS = 2**-12  # numbers of fp16 that are below it by a factor of 4 have fewer digits than others
_AT_ONCE = 2**22  # numbers that are rounded at a time


def rounded(matrix: Tensor, bits: int) -> PackedMatrix:
    """The nearest matrix in codes, in groups of 32.

    Codes of 8 bits have scales alone, the largest number of a group over 127, so that no number is off by more than
    half of its scale and that scale's rounding. Codes of 4 bits have scales and minima. For each of several ranges the
    numbers are rounded, and then scale and minimum are those of the least squared error; the range with the smallest
    one is taken. Scales are in fp16, or in fp32 if fp16 has few digits for most of them.

    Args:
        matrix: ``[N, K]`` of any floating dtype; K is a multiple of 32.
        bits: 4 or 8.

    Raises:
        LongspanError: a number is infinite, NaN, or too large for a scale in fp16.
    """
    parts = matrix.split(max(1, _AT_ONCE // matrix.shape[1]))
    largest = torch.cat([part.unflatten(1, (-1, GROUP)).abs().amax(dim=2) for part in parts]).float()
    dtype = torch.float32 if largest.median() < _LARGEST[8] * _FEW_DIGITS else torch.float16
    found = [(_of_4 if bits == 4 else _of_8)(part.float().unflatten(1, (-1, GROUP)), dtype) for part in parts]
    codes, scales = torch.cat([one[0] for one in found]), torch.cat([one[1] for one in found])
    minima = [one[2] for one in found if one[2] is not None]
    if not all(bool(part.isfinite().all()) for part in (scales, *minima)):
        raise LongspanError("a weight is infinite, NaN or over 65,504, which codes cannot be scaled to")
    return PackedMatrix(codes, scales, torch.cat(minima) if minima else None)


def _of_8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, None]:
    scales = (x.abs().amax(dim=2) / _LARGEST[8]).to(dtype)
    codes = torch.where(scales[:, :, None] > 0, x / scales[:, :, None].float(), 0).round_()
    return codes.clamp_(-_LARGEST[8], _LARGEST[8]).flatten(1).to(torch.int8), scales, None


def _of_4(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.amin(dim=2, keepdim=True), x.amax(dim=2, keepdim=True)
    middle, half = (low + high) / 2, (high - low) / 2
    best = torch.full(x.shape[:2], torch.inf)
    codes, scales, minima = torch.zeros_like(x, dtype=torch.uint8), best.clone(), best.clone()
    for shrink in _SHRINKS:
        scale, minimum = 2 * shrink * half / _LARGEST[4], middle - shrink * half
        found = torch.where(scale > 0, (x - minimum) / scale, 0).round_().clamp_(0, _LARGEST[4])
        # The line through (code, number) of the least squared error.
        codes_mean, mean = found.mean(dim=2, keepdim=True), x.mean(dim=2, keepdim=True)
        spread = (found - codes_mean).square().sum(dim=2, keepdim=True)
        slope = torch.where(spread > 0, ((found - codes_mean) * (x - mean)).sum(dim=2, keepdim=True) / spread, 0)
        slope = slope.to(dtype)
        start = (mean - slope.float() * codes_mean).to(dtype)
        error = (slope.float() * found + start.float() - x).square().sum(dim=2)
        error = torch.where(error.isfinite(), error, torch.finfo(torch.float32).max)
        better = error < best
        best = torch.where(better, error, best)
        codes = torch.where(better[:, :, None], found.to(torch.uint8), codes)
        scales = torch.where(better, slope[:, :, 0].float(), scales)
        minima = torch.where(better, start[:, :, 0].float(), minima)
    return nibbles(codes.flatten(1)), scales.to(dtype), minima.to(dtype)
