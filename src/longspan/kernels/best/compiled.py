"""The best of many scores in C: the score of the last place is found, and nothing is sorted."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from longspan.kernels import native

_GIVEN = struct.Struct("=9qd")


def why_not(scores: Tensor) -> str | None:
    """Why this kernel cannot run here, or None."""
    if scores.device.type != "cpu":
        return f"the scores are on {scores.device.type}"
    return f"no {scores.dtype}" if scores.dtype != torch.float32 else native.why_no_library()


def best(scores: Tensor, count: int, tie: float, last: bool, start: int, stops: Tensor | None, near: int = 0) -> Tensor:
    rows, n = scores.shape[:-1], scores.shape[-1]
    scores = scores.contiguous()
    found = torch.empty(*rows, count, dtype=torch.int64, device="cpu")
    if found.numel() == 0:
        return found
    ends = stops.contiguous() if stops is not None else None
    places = (n if ends is None else min(n, int(ends.min()))) - start
    if places < count:
        raise ValueError(f"a row has {places} scores of which {count} are to be the best")
    at = scores.data_ptr(), 0 if ends is None else ends.data_ptr(), found.data_ptr()
    given = _GIVEN.pack(*at, n, count, start, rows[-1] if rows else 1, last, near, tie)
    native.run("best", rows.numel(), given, scores.numel())
    return found
