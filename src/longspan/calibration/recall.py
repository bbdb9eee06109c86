"""How many of the keys that score highest the reduced scores find: the ESA paper's Figure 2."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from torch import Tensor

from longspan.calibration.projection import Projection, flat_keys, flat_queries, group_sum
from longspan.errors import CalibrationError
from longspan.files import save_figure
from longspan.tables import Column, Sheet


def recall(q: Tensor, k: Tensor, projection: Projection, top: int) -> float:
    """Share of each query's ``top`` highest-scoring keys that are among its ``top`` under the reduced scores.

    Args:
        q: ``[B, H, T, D]``, unrotated queries.
        k: ``[B, Hkv, N, D]``, unrotated keys, every one of them a candidate for every query of its row.
        projection: for a layer the scores are summed over all heads; per head over each key head's group.
        top: at most ``N``.

    Returns:
        The mean over rows, queries and, per head, key heads; 0 to 1.
    """
    if not 1 <= top <= k.shape[2]:
        raise ValueError(f"the top {top} of {k.shape[2]} keys: it has to be 1 to {k.shape[2]}")
    if projection.per_head:
        exact = group_sum(q.float(), k.shape[1]) @ k.float().mT
    else:
        exact = flat_queries(q.float(), k.shape[1]) @ flat_keys(k.float()).mT
    reduced = projection.reduce_queries(q) @ projection.reduce_keys(k).mT
    wanted, found = (scores.topk(top, dim=-1).indices for scores in (exact, reduced))
    marks = exact.new_zeros(exact.shape).scatter_(-1, wanted, 1.0)
    return float(marks.gather(-1, found).mean())


@dataclass(frozen=True)
class Row:
    """The recall of one solver in one layer, whole (``layer``) and per key head (``heads``), 0 to 1."""

    index: int
    solver: str
    layer: float
    heads: float


@dataclass(frozen=True)
class RecallReport:
    """Recall by layer and solver, as an object that prints as a table.

    Attributes:
        rows: one for each layer and solver.
        top: how many keys are looked for. keys: among how many. queries: for how many queries in all.
        reduced, reduced_per_head: ``d'`` and ``d''``. channels: ``Hkv * D`` of the layers.
    """

    rows: Sequence[Row]
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
        """The recall of a solver over all layers; ``kind`` is ``"layer"`` or ``"heads"``."""
        rates = [getattr(row, kind) for row in self.rows if row.solver == solver]
        return sum(rates) / len(rates)

    def title(self) -> str:
        """What was measured, in a line."""
        return f"recall of the top {self.top:,} of {self.keys:,} keys, {self.queries:,} queries"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sizes = f"{self.reduced} numbers for {self.channels} channels, {self.reduced_per_head} a key head"
        kinds = [(kind, solver) for kind in ("layer", "heads") for solver in self.solvers]
        said = {"layer": "summed", "heads": "per head"}
        columns = [
            Column("layer", "right"),
            *(Column(f"{solver}\n{said[kind]}", "right") for kind, solver in kinds),
        ]
        values = {(row.index, row.solver): row for row in self.rows}
        rows = [
            (str(index), *(f"{getattr(values[index, solver], kind):.3f}" for kind, solver in kinds))
            for index in self.layers
        ]
        rows.append(("mean", *(f"{self.mean(kind, solver):.3f}" for kind, solver in kinds)))
        yield Sheet(columns, rows, title=f"{self.title()}\n{sizes}")

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120, color_system=None)
        console.print(self)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]

    def plot(self, path: str | Path) -> None:
        """Draw it, recall over layers with a line a solver, as a PNG.

        Raises:
            CalibrationError: matplotlib is not installed.
        """
        if find_spec("matplotlib") is None:
            raise CalibrationError("the plot needs matplotlib: pip install 'longspan[plot]'")
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
