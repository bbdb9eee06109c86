"""Recall of the keys with the highest scores under reduced scores: the ESA paper's Figure 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from torch import Tensor

from longspan.calibration.projection import Projection, flat_keys, flat_queries, group_sum
from longspan.errors import CalibrationError
from longspan.files import save_figure
from longspan.install import pip_install
from longspan.terminal import Column, Sheet, plain_text


def recall(q: Tensor, k: Tensor, projection: Projection, top: int) -> float:
    """The fraction of each query's ``top`` keys by exact score that are among its ``top`` keys by reduced score.

    Args:
        q: ``[B, H, T, D]``, unrotated queries.
        k: ``[B, Hkv, N, D]``, unrotated keys; every query ranks all ``N`` keys of its row, without a causal mask.
        projection: maps of a layer compare scores summed over all heads; maps per head, scores summed over each group.
        top: 1 to ``N``.

    Returns:
        The mean over rows, queries and, for maps per head, key heads; 0 to 1.

    Raises:
        ValueError: ``top`` is out of range.
    """
    if not 1 <= top <= k.shape[2]:
        raise CalibrationError(f"top must be 1 to the number of keys, {k.shape[2]}, not {top}")
    if projection.per_head:
        exact = group_sum(q.float(), k.shape[1]) @ k.float().mT
    else:
        exact = flat_queries(q.float(), k.shape[1]) @ flat_keys(k.float()).mT
    reduced = projection.reduce_queries(q) @ projection.reduce_keys(k).mT
    exact_top, reduced_top = (scores.topk(top, dim=-1).indices for scores in (exact, reduced))
    in_top = exact.new_zeros(exact.shape).scatter_(-1, exact_top, 1.0)
    return float(in_top.gather(-1, reduced_top).mean())


@dataclass(frozen=True)
class RecallRow:
    """The recall of one solver in one layer, 0 to 1.

    Attributes:
        index: of the layer in the cache.
        solver: a name in ``SOLVERS``.
        layer: the recall of scores summed over all heads.
        heads: the mean recall of scores per key head.
    """

    index: int
    solver: str
    layer: float
    heads: float


@dataclass(frozen=True)
class RecallReport:
    """Recall by layer and solver; prints as a table.

    Attributes:
        rows: one per layer and solver.
        top: the number of keys with the highest scores.
        keys: the number of candidate keys of each query.
        queries: the number of queries in total.
        reduced, reduced_per_head: ``d'`` and ``d''``.
        channels: ``Hkv * D`` of the layers.
    """

    rows: Sequence[RecallRow]
    top: int
    keys: int
    queries: int
    reduced: int
    reduced_per_head: int
    channels: int

    @property
    def layers(self) -> list[int]:
        """Layer indices, in order of appearance."""
        return list(dict.fromkeys(row.index for row in self.rows))

    @property
    def solvers(self) -> list[str]:
        """Solvers, in order of appearance."""
        return list(dict.fromkeys(row.solver for row in self.rows))

    def mean(self, kind: str, solver: str) -> float:
        """The mean recall of a solver over all layers; ``kind`` is ``"layer"`` or ``"heads"``."""
        rates: list[float] = [getattr(row, kind) for row in self.rows if row.solver == solver]
        return sum(rates) / len(rates)

    def title(self) -> str:
        """The measurement in one line."""
        return f"recall of the top {self.top:,} of {self.keys:,} keys, {self.queries:,} queries"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sizes = f"{self.reduced} of {self.channels} channels per layer, {self.reduced_per_head} per key head"
        kinds = [(kind, solver) for kind in ("layer", "heads") for solver in self.solvers]
        labels = {"layer": "summed", "heads": "per head"}
        columns = [Column("layer", "right"), *(Column(f"{solver}\n{labels[kind]}", "right") for kind, solver in kinds)]
        values = {(row.index, row.solver): row for row in self.rows}
        rows = [
            (str(index), *(f"{getattr(values[index, solver], kind):.3f}" for kind, solver in kinds))
            for index in self.layers
        ]
        rows.append(("mean", *(f"{self.mean(kind, solver):.3f}" for kind, solver in kinds)))
        yield Sheet(columns, rows, title=f"{self.title()}\n{sizes}")

    def __str__(self) -> str:
        return plain_text(self, 120)

    def plot(self, path: str | Path) -> None:
        """Plot recall over layers, one line per solver, and write a PNG.

        Raises:
            CalibrationError: matplotlib is not installed.
            OSError: the file cannot be written.
        """
        if find_spec("matplotlib") is None:
            raise CalibrationError(f"the plot needs matplotlib: {pip_install('plot')}")
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
        sizes = {"layer": f"summed over heads, {self.reduced} of {self.channels}"}
        sizes["heads"] = f"per key head, {self.reduced_per_head}"
        for axis, (kind, title) in zip(axes, sizes.items(), strict=True):
            for solver in self.solvers:
                rows = sorted((row for row in self.rows if row.solver == solver), key=lambda row: row.index)
                axis.plot([row.index for row in rows], [getattr(row, kind) for row in rows], marker="o", label=solver)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("layer")
            axis.set_xticks(self.layers)
            axis.set_ylim(0, 1)
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("recall")
        axes[0].legend(fontsize=8)
        figure.suptitle(self.title(), fontsize=11)
        save_figure(figure, path, dpi=150)
