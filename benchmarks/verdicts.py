"""What the rows of a benchmark say: the exponent of growth, and whether each bar was met."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Row = Mapping[str, object]
SHAPE = ("phase", "dtype", "heads", "kv_heads", "width", "layers", "method")  # what has a growth of its own


def fit_exponent(lengths: Sequence[float], seconds: Sequence[float]) -> float:
    """``b`` of the line ``log t = a + b log n`` through the points with the least squares.

    Raises:
        ValueError: fewer than two different lengths, or a length or time that is not positive.
    """
    if len(lengths) != len(seconds):
        raise ValueError(f"{len(lengths)} lengths and {len(seconds)} times; give one time for each length")
    if any(not x > 0 for x in (*lengths, *seconds)):
        raise ValueError("an exponent is fitted to logarithms, so lengths and times are positive")
    if len(set(lengths)) < 2:
        raise ValueError(f"an exponent needs two different lengths or more, not {sorted(set(lengths))}")
    x, y = ([math.log(value) for value in values] for values in (lengths, seconds))
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - middle_x) ** 2 for a in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / across


def growth(rows: Iterable[Row]) -> list[dict[str, object]]:
    """The fitted exponent of each method's time, by phase, dtype and shape, with the lengths that it was fitted to."""
    by_method: dict[tuple[object, ...], dict[int, float]] = {}
    for row in rows:
        if row.get("seconds") in (None, ""):
            continue
        key = tuple(row[name] for name in SHAPE)
        by_method.setdefault(key, {})[int(str(row["length"]))] = float(str(row["seconds"]))
    found = []
    for key, points in by_method.items():
        if len(points) < 2:
            continue
        lengths = sorted(points)
        exponent = fit_exponent(lengths, [points[n] for n in lengths])
        found.append(
            {
                **dict(zip(SHAPE, key, strict=True)),
                "exponent": f"{exponent:.2f}",
                "lengths": " ".join(map(str, lengths)),
            }
        )
    return found


@dataclass(frozen=True)
class Bar:
    """The most that a column of a row may be.

    Attributes:
        column: ``over_flash``, ``over_stock``, ``over_full`` or ``over_short`` (its own time at a shorter length), all
            medians of ratios in one round, or ``over_floor``.
        limit: the most.
        dtype: of the row; any unless given.
        width: of the row's heads.
    """

    phase: str
    method: str
    length: int
    column: str
    limit: float
    dtype: str | None = None
    width: int = 128

    @property
    def text(self) -> str:
        heads = "" if self.width == 128 else f", heads of {self.width}"
        return (
            f"{self.phase} at {self.length:,}{heads}: {self.method} {self.column.replace('_', ' ')} ≤ {self.limit:.3g}"
        )

    def judge(self, rows: Iterable[Row]) -> list[dict[str, object]]:
        """A verdict for each row that it is about: ``met``, or ``missed``."""
        found: list[dict[str, object]] = []
        for row in rows:
            here = row["phase"], row["method"], int(str(row["length"]))
            if here != (self.phase, self.method, self.length) or int(str(row["width"])) != self.width:
                continue
            if self.dtype not in (None, row["dtype"]):
                continue
            if row.get(self.column) in (None, ""):
                continue
            value = float(str(row[self.column]))
            found.append(
                {
                    "bar": self.text,
                    "dtype": row["dtype"],
                    "heads": row["heads"],
                    "value": f"{value:.3f}",
                    "limit": f"{self.limit:.3f}",
                    "verdict": "met" if value <= self.limit else "missed",
                }
            )
        return found


CPU_BARS = [
    Bar("prefill", "dca", 16384, "over_flash", 1.0),
    Bar("prefill", "longheads", 16384, "over_flash", 0.30),
    Bar("prefill", "longheads", 65536, "over_flash", 0.09),
    Bar("prefill", "esa", 16384, "over_flash", 0.35),
    Bar("prefill", "longheads", 16384, "over_flash", 0.35, width=64),
    Bar("prefill", "longheads", 65536, "over_flash", 0.12, width=64),
    Bar("decode", "dca", 65536, "over_full", 1.1, dtype="bf16"),
    Bar("decode", "longheads", 65536, "over_full", 1 / 7, dtype="bf16"),
    Bar("decode", "esa", 65536, "over_full", 1 / 3.5, dtype="bf16"),
    Bar("decode", "full", 65536, "over_stock", 1 / 4),
    Bar("decode", "dca", 65536, "over_stock", 1 / 4),
    Bar("decode", "longheads", 65536, "over_stock", 1 / 40),
    Bar("decode", "esa", 65536, "over_stock", 1 / 20),
    Bar("decode", "longheads", 65536, "over_floor", 2.0),
    Bar("decode", "esa", 65536, "over_floor", 2.0),
    Bar("decode", "longheads", 262144, "over_short", 1.7),
    Bar("decode", "longheads-mean", 262144, "over_short", 1.3),
]
GPU_BARS = [
    *(Bar("prefill", "dca", length, "over_flash", 1.05) for length in (16384, 65536)),
    *(Bar("prefill", method, 65536, "over_flash", 0.25) for method in ("longheads", "esa")),
    Bar("decode", "dca-graph", 131072, "over_flash", 1.10),
    Bar("decode", "longheads-graph", 131072, "over_full", 1 / 10),
    Bar("decode", "esa-graph", 131072, "over_full", 1 / 5),
    # 60% of the measured copy rate.
    *(Bar("decode", f"{m}-graph", 131072, "over_floor", 1 / 0.6) for m in ("full", "dca", "longheads", "esa")),
]


def judge(bars: Iterable[Bar], rows: Sequence[Row]) -> list[dict[str, object]]:
    """Every bar's verdicts; one that no row is about is ``not measured``, so that none is passed over."""
    found: list[dict[str, object]] = []
    for bar in bars:
        unmeasured = {"dtype": "", "heads": "", "value": "", "limit": f"{bar.limit:.3f}", "verdict": "not measured"}
        found += bar.judge(rows) or [{"bar": bar.text, **unmeasured}]
    return found
