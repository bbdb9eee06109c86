"""Top-k on a GPU: one program a row finds the score of the last place, and nothing is sorted."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels.gpu import tiles

_BLOCK, _INTERPRETED = 8192, 64  # places that a program has in its registers at once
_NEARBY = 1024  # places that a program compares with those nearby
_LONG, _FEW_ROWS = 1 << 18, 8  # places of a row that are too many for one program, unless there are as many rows


def unsupported_reason(scores: Tensor) -> str | None:
    """Why this kernel cannot run on these scores (any shape), or None."""
    return f"no {scores.dtype}" if scores.dtype != torch.float32 else tiles.unsupported_reason(scores)


def slower(scores: Tensor) -> bool:
    """Whether torch's operations are faster on scores ``[..., T, n]`` than a program a row."""
    n = scores.shape[-1]
    rows = scores.numel() // max(n, 1)
    return n > _LONG and rows < _FEW_ROWS


def topk(scores: Tensor, count: int, tie: float, last: bool, start: int, stops: Tensor | None, near: int) -> Tensor:
    """``[..., T, count]`` int64 of fp32 scores ``[..., T, n]``; stops on the scores' device are not looked at here."""
    shape, n = scores.shape[:-1], scores.shape[-1]
    tokens = shape[-1] if shape else 1
    if near < 0:
        raise ValueError(f"the number of nearby scores is negative: {near}")
    if stops is not None and stops.shape != (tokens,):
        raise ValueError(f"stops are {list(stops.shape)} and not [{tokens}]")
    end = n
    if stops is not None and stops.device.type == "cpu" and stops.numel():
        end = min(n, int(stops.min()))
    if start < 0 or count < 0 or end - start < count:
        raise ValueError(f"there are fewer scores than places: {end - start} from place {start} on, and not {count}")
    stop = n
    if tokens == 1 and stops is not None and stops.device.type == "cpu":  # a number, of which nothing is copied
        stop, stops = end, None
    if stops is not None:
        # Memory that is not pinned is read before the call returns, which need not wait for the device.
        stops = stops.to(scores.device, torch.int64, non_blocking=True).contiguous()
    return launch(scores, count, tie, last, start, stop, stops, near)


def launch(
    scores: Tensor, count: int, tie: float, last: bool, start: int, stop: int, stops: Tensor | None, near: int
) -> Tensor:
    """``topk`` of places before ``stop`` and ``stops`` int64 on the device, of which nothing is looked at.

    Those are ``[T]``, or ``[1]`` for all rows.
    """
    from longspan.kernels.topk import triton_jit

    shape, n = scores.shape[:-1], scores.shape[-1]
    tokens, rows = 1 if stops is None else len(stops), shape.numel()
    chosen = torch.empty(*shape, count, dtype=torch.int64, device=scores.device)
    if chosen.numel() == 0:
        return chosen
    scores = scores.contiguous()
    ends = scores if stops is None else stops
    block = min(tiles.power(stop - start), _INTERPRETED if tiles.interpreting() else _BLOCK)
    with tiles.on(scores.device):
        if near:
            alone, scores, some = scores, torch.empty_like(scores), min(block, _NEARBY)
            parts = -(-stop // some)
            triton_jit.nearby[(rows * parts,)](
                alone, ends, scores, tokens, n, stop, start, count, min(near, n), parts,
                STOPS=stops is not None, BLOCK=some, num_warps=4,
            )  # fmt: skip
        triton_jit.topk[(rows,)](
            scores, ends, chosen, tokens, n, stop, start, count, float(tie),
            STOPS=stops is not None, TIE=tie > 0, LAST=last, BLOCK=block, num_warps=max(1, min(block // 512, 16)),
        )  # fmt: skip
    return chosen
