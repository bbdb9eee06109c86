"""Pictures: which chunks every head keeps, and at which relative positions a method sees keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from longspan.attend import Choice
from longspan.errors import LongspanError
from longspan.files import save_figure
from longspan.methods import Method
from longspan.recording.chunks import Chunking, kept_map
from longspan_eval.report.charts import pyplot

NOT_KEPT, KEPT, CHOSEN, ANSWER = "#f1f1ee", "#b9c8d3", "#17736b", "#d1432b"
_NUMBERS = 24  # a matrix of at most so many rows has its numbers written in
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
    plt = pyplot()
    rows, columns = kept.shape
    size = min(max(0.09 * columns, 5.0), 24.0) + 1.2, min(max(0.16 * rows, 1.2), 20.0) + 1.5
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    axis.imshow(
        kept.numpy(),
        cmap=ListedColormap([NOT_KEPT, KEPT, CHOSEN]),
        vmin=0,
        vmax=2,
        aspect="auto",
        interpolation="nearest",
    )
    firsts = [n for n, (layer, _) in enumerate(names) if n == 0 or names[n - 1][0] != layer]
    axis.set_yticks(firsts, [f"layer {names[n][0]}" for n in firsts], fontsize=7)
    for n in firsts[1:]:
        axis.axhline(n - 0.5, color="white", linewidth=1.5)
    for n in answers:
        axis.add_patch(Rectangle((n - 0.5, -0.5), 1, rows, fill=False, edgecolor=ANSWER, linewidth=1.8, zorder=3))
    axis.set_xlabel(f"chunk of {columns}", fontsize=8)
    axis.set_ylabel("layers" if kind == "layer" else f"{kind}s of each layer", fontsize=8)
    axis.tick_params(labelsize=7, length=2)
    axis.spines[:].set_visible(False)
    legend = [Patch(color=CHOSEN, label="chosen"), Patch(color=KEPT, label="kept anyway")]
    if answers:
        legend.append(Patch(fill=False, edgecolor=ANSWER, label="holds the answer"))
    figure.legend(handles=legend, loc="outside lower right", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path, dpi=150)


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
    """A PNG of ``relative_positions``, numbers written in where they are few: for DCA its paper's Figure 2.

    Raises:
        LongspanError: see ``relative_positions``.
    """
    rel, keep = relative_positions(method, length)
    plt = pyplot()
    side = min(max(0.32 * length, 3.5), 8.0)
    figure, axis = plt.subplots(figsize=(side + 1.2, side + 0.6), layout="constrained")
    shown = rel.double().masked_fill(~keep, float("nan")).numpy()
    colours = plt.get_cmap("YlGnBu").with_extremes(bad="#ffffff")
    image = axis.imshow(shown, cmap=colours, interpolation="nearest")
    if length <= _NUMBERS:
        dark = float(rel[keep].max()) * 0.55
        for i, j in keep.nonzero().tolist():
            value = int(rel[i, j])
            axis.text(j, i, str(value), ha="center", va="center", fontsize=7, color="w" if value > dark else "k")
    axis.set_xlabel("key", fontsize=8)
    axis.set_ylabel("query", fontsize=8)
    axis.tick_params(labelsize=7, length=2)
    figure.colorbar(image, ax=axis, shrink=0.8, label="relative position")
    figure.suptitle(f"{method.name}, {length:,} tokens" if title is None else title, fontsize=10)
    save_figure(figure, path, dpi=150)
