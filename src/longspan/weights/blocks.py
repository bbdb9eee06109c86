"""Matrices of a GGUF file as it stores them: its blocks, read without rounding a weight again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from longspan.kernels.linear.contract import PackedMatrix, nibbles


def packed_blocks(blocks: np.ndarray, kind: str) -> PackedMatrix | None:
    """A matrix in blocks.

    Args:
        blocks: uint8 ``[N, bytes of a row]``.
        kind: their type, by the name that GGUF has for it.

    Returns:
        The matrix, whose numbers are those of the blocks; None if their codes have uneven steps or other groups.
    """
    if kind not in _READ:
        return None
    size, read = _READ[kind]
    rows = torch.from_numpy(np.array(blocks))
    codes, scales, *minima = read(rows.unflatten(1, (-1, size)))
    return PackedMatrix(codes, scales, minima[0] if minima else None)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The fp16 number at a place of each block, ``[N, blocks]``."""
    return blocks[:, :, at : at + 2].contiguous().view(torch.float16)[:, :, 0]


def _q4_0(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales = _half(blocks, 0)
    return blocks[:, :, 2:].flatten(1), scales, -8 * scales


def _q4_1(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return blocks[:, :, 4:].flatten(1), _half(blocks, 0), _half(blocks, 2)


def _fifth_bits(words: Tensor) -> Tensor:
    """Bit n of 32 for number n: ``[N, blocks, 4]`` bytes to ``[N, blocks, 32]`` numbers, 0 or 16."""
    places = torch.arange(8, dtype=torch.uint8)
    return ((words[..., None] >> places & 1) << 4).flatten(2)


def _fives(words: Tensor, halves: Tensor) -> Tensor:
    """Codes of 0 to 31, int8 ``[N, blocks, 32]``."""
    return (torch.cat([halves & 15, halves >> 4], dim=2) | _fifth_bits(words)).to(torch.int8)


def _q5_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    return (_fives(blocks[:, :, 2:6], blocks[:, :, 6:]) - 16).flatten(1), _half(blocks, 0)


def _q5_1(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _fives(blocks[:, :, 4:8], blocks[:, :, 8:]).flatten(1), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    return blocks[:, :, 2:].contiguous().view(torch.int8).flatten(1), _half(blocks, 0)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of 6 bits in each 12 bytes, ``[N, blocks, 8]`` fp32.

    Bytes 0 to 3 have the first four scales in their low six bits, bytes 4 to 7 the first four minima. Bytes 8 to 11
    have the low four bits of the other scales and minima, whose high two are in the bytes before.
    """
    a, b, c = packed[:, :, :4], packed[:, :, 4:8], packed[:, :, 8:]
    scales = torch.cat([a & 63, (c & 15) | (a >> 6 << 4)], dim=2)
    minima = torch.cat([b & 63, (c >> 4) | (b >> 6 << 4)], dim=2)
    return scales.float(), minima.float()


def _k_groups(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of the eight groups of each block of 256, fp32 ``[N, groups]``."""
    scales, minima = _six_bits(blocks[:, :, 4:16])
    found = _half(blocks, 0).float()[:, :, None] * scales, -_half(blocks, 2).float()[:, :, None] * minima
    return found[0].flatten(1), found[1].flatten(1)


def _in_pairs(packed: Tensor) -> Tensor:
    """128 bytes of two codes each, 32 low halves and then 32 high ones, as uint8 ``[N, blocks, 8, 32]``."""
    halves = packed.unflatten(2, (4, 1, 32))
    return torch.cat([halves & 15, halves >> 4], dim=3).flatten(2, 3)


def _q4_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return nibbles(_in_pairs(blocks[:, :, 16:]).flatten(1)), *_k_groups(blocks)


def _q5_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    high = blocks[:, :, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    codes = _in_pairs(blocks[:, :, 48:]) | high << 4
    return codes.to(torch.int8).flatten(1), *_k_groups(blocks)


def _q6_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    low, high = blocks[:, :, :128].unflatten(2, (2, 1, 64)), blocks[:, :, 128:192].unflatten(2, (2, 1, 32))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    fours = torch.cat([low & 15, low >> 4], dim=3).flatten(3)  # of each half of the block: 128 numbers
    twos = (high >> shifts & 3).flatten(3)
    codes = (fours.flatten(3) | twos.reshape(fours.shape) << 4).to(torch.int8) - 32
    scales = _half(blocks, 208).float()[:, :, None] * blocks[:, :, 192:208].contiguous().view(torch.int8).float()
    return codes.flatten(1), scales.flatten(1)


_READ: dict[str, tuple[int, Callable[[Tensor], tuple[Tensor, ...]]]] = {  # with the bytes of a block
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
