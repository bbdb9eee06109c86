"""Pictures: which chunks every head keeps, and at which relative positions a method sees keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from longspan.attend import Choice
from longspan.errors import LongspanError
from longspan.methods import Method
from longspan.recording.chunks import Chunking, kept_map
from longspan_eval.report import charts

_LARGEST = 4096


def draw_selection(
    choices: Sequence[Choice],
    chunks: Chunking,
    path: str | Path,
    *,
    answers: Sequence[int] = (),
    title: str = "",
    kind: str = "head",
) -> None:
    """A PNG of the chunks that each layer's heads (or groups) keep for one query: LongHeads' Figure 5.

    Args:
        choices: of one query, see ``Trace.at``.
        answers: the chunks that hold the answer, which are outlined.
        kind: what chooses: ``"head"``, the ``"group"`` of a key head, or the ``"layer"``.
    """
    names, kept = kept_map(choices, chunks)
    firsts = [n for n, (layer, _) in enumerate(names) if n == 0 or names[n - 1][0] != layer]
    charts.kinds(
        kept.tolist(),
        ("kept anyway", "chosen"),
        {n: f"layer {names[n][0]}" for n in firsts},
        title,
        path,
        outlined=answers,
        outline="holds the answer",
        x=f"chunk of {kept.shape[1]}",
        y="layers" if kind == "layer" else f"{kind}s of each layer",
    )


def relative_positions(method: Method, length: int) -> tuple[Tensor, Tensor]:
    """At which relative position each query sees each key, and whether it keeps it: ``[n, n]`` int64 and bool.

    Args:
        method: resolved, of those that keep keys by their index.
        length: ``n``, tokens.

    Raises:
        LongspanError: the method chooses keys by looking at them, or the length is none.
    """
    if method.selects:
        raise LongspanError(
            f"{method.name} chooses keys by looking at them, so there is no one matrix of its positions"
        )
    if not 1 <= length <= _LARGEST:
        raise LongspanError(f"a matrix of positions has 1 to {_LARGEST:,} rows, not {length:,}: give another length")
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    rel, keep = torch.zeros(length, length, dtype=torch.int64), torch.zeros(length, length, dtype=torch.bool)
    for band in method.bands(length):
        inside = (j >= band.keys.lo(i)) & (j < band.keys.hi(i)) & (j <= i)
        rel, keep = torch.where(inside, band.q_pos(i) - band.k_pos(j), rel), keep | inside
    return rel, keep


def draw_positions(method: Method, length: int, path: str | Path, *, title: str | None = None) -> None:
    """A PNG of ``relative_positions``, numbers written in if they are few: for DCA its paper's Figure 2.

    Raises:
        LongspanError: see ``relative_positions``.
    """
    rel, keep = relative_positions(method, length)
    shown = rel.double().masked_fill(~keep, float("nan")).tolist()
    title = f"{method.name}, {length:,} tokens" if title is None else title
    charts.numbers(shown, title, path, x="key", y="query", label="relative position")
