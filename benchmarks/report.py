"""The benchmark suite's results to read: a page of tables, and pictures of time against length.

python benchmarks/report.py                # from the CSV files in results/speed: speed.md, prefill.png and decode.png
python benchmarks/report.py --folder benchmarks/results/gpu
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common import between, load
from contestants import GRAPH
from longspan.files import save_figure

FOLDER = Path(__file__).parent / "results" / "speed"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
MARKS = {name: (f"<!-- {name} -->", f"<!-- /{name} -->") for name in ("speed", "gpu")}  # by the folder of results
NAMES = {
    "flash": "flash attention alone",
    "stock": "transformers, YaRN",
    "kvpress": "kvpress, SnapKV",
    "full": "longspan full",
    "dca": "longspan dca",
    "longheads": "longspan longheads",
    "esa": "longspan esa",
}
NAMES |= {f"{name}{GRAPH}": f"{NAMES[name]}, CUDA graph" for name in ("full", "dca", "longheads", "esa")}
Points = dict[str, dict[int, float]]  # seconds by length by method
Row = Mapping[str, object]
SHAPE = ("phase", "dtype", "heads", "kv_heads", "width", "layers", "method")  # what has a growth of its own
# The ratios on the documentation's page: phase, method, tokens, column, and the heads' width.
SHOWN = [
    *(("prefill", method, 16384, "over_flash", 128) for method in ("dca", "longheads", "esa")),
    ("prefill", "longheads", 65536, "over_flash", 128),
    *(("prefill", "longheads", tokens, "over_flash", 64) for tokens in (16384, 65536)),
    *(("decode", method, 65536, "over_full", 128) for method in ("dca", "longheads", "esa")),
    *(("decode", method, 65536, "over_stock", 128) for method in ("full", "dca", "longheads", "esa")),
    *(("decode", method, 65536, "over_floor", 128) for method in ("longheads", "esa")),
    *(("decode", method, 262144, "over_short", 128) for method in ("longheads", "longheads-mean")),
]
OVER = {"over_flash": "torch's flash attention", "over_stock": "transformers, YaRN", "over_full": "`full`"}
OVER |= {"over_floor": "its floor", "over_short": "itself after 16,384"}


def fit_exponent(lengths: Sequence[float], seconds: Sequence[float]) -> float:
    """``b`` of the line ``log t = a + b log n`` through the points with the least squares."""
    x, y = ([math.log(value) for value in values] for values in (lengths, seconds))
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - middle_x) ** 2 for a in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / across


def growth(rows: Iterable[Row]) -> list[dict[str, str]]:
    """The fitted exponent of each method's time, by phase, dtype and shape, with the lengths that it was fitted to."""
    by_method: dict[tuple[object, ...], dict[int, float]] = {}
    for row in rows:
        if row.get("seconds") not in (None, ""):
            key = tuple(row[name] for name in SHAPE)
            by_method.setdefault(key, {})[int(str(row["length"]))] = float(str(row["seconds"]))
    found = []
    for key, points in by_method.items():
        if len(points) > 1:
            exponent = fit_exponent(lengths := sorted(points), [points[n] for n in lengths])
            named = dict(zip(SHAPE, map(str, key), strict=True))
            found.append({**named, "exponent": f"{exponent:.2f}", "lengths": " ".join(map(str, lengths))})
    return found


def ratios(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of the table of ``SHOWN``, one for each dtype."""
    found = []
    for phase, method, tokens, column, width in SHOWN:
        what = f"{phase} at {tokens:,}" + ("" if width == 128 else f", heads of {width}")
        for row in rows:
            here = row["phase"], row["method"], int(row["length"]), int(row["width"])
            if here == (phase, method, tokens, width) and row.get(column):
                over = f"`{method}` over {OVER[column]}"
                found.append({"what": what, "over": over, "dtype": row["dtype"], "ratio": f"{float(row[column]):.3f}"})
    return found


def points(rows: Sequence[dict[str, str]], phase: str, dtype: str) -> Points:
    """What a picture shows: of each method the times in the shape in which it has most lengths.

    Raises:
        ValueError: no row is of this phase and dtype.
    """
    shapes: dict[str, dict[tuple[str, ...], dict[int, float]]] = {}
    for row in rows:
        if (row["phase"], row["dtype"]) == (phase, dtype) and row["method"] in NAMES:
            by_shape = shapes.setdefault(row["method"], {})
            by_shape.setdefault((row["heads"], row["width"], row["layers"]), {})[int(row["length"])] = float(
                row["seconds"]
            )
    if not shapes:
        raise ValueError(f"no row of a {phase} in {dtype}; run benchmarks/suite.py first")
    return {name: max(shapes[name].values(), key=len) for name in NAMES if name in shapes}


def draw(found: Points, title: str, label: str, path: Path) -> None:
    """One picture as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for (name, by_length), marker in zip(found.items(), "osv^Dx*", strict=False):
        lengths = sorted(by_length)
        seconds = [by_length[n] for n in lengths]
        grows = f" (n^{fit_exponent(lengths, seconds):.2f})" if len(lengths) > 1 else ""
        axes.loglog(lengths, seconds, marker=marker, markersize=5, linewidth=1.4, label=NAMES[name] + grows)
    ticks = sorted({n for by_length in found.values() for n in by_length})
    axes.set_xticks(ticks, [f"{n // 1024}k" for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, path, dpi=130)


def machine_of(row: dict[str, str]) -> str:
    """The machine that a row is from, in words."""
    threads = "one thread, its CPU time" if row["threads"] == "1" else f"{row['threads']} threads, wall time"
    versions = f"torch {row['torch']}, transformers {row['transformers']}, kvpress {row['kvpress']}"
    where = f"cpu ({row['cpu']}), {threads}" if row["device"] == "cpu" else row["device"]
    return f"{where}, {versions}"


def markdown(rows: Sequence[dict[str, str]], columns: dict[str, str]) -> list[str]:
    """A table of these columns, under their headings."""
    lines = ["| " + " | ".join(columns.values()) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    return [*lines, *("| " + " | ".join(row.get(name, "") for name in columns) + " |" for row in rows)]


def page(cases: Sequence[dict[str, str]]) -> str:
    """All of it as Markdown."""
    columns = {"phase": "", "dtype": "", "heads": "heads", "width": "of", "layers": "layers", "length": "tokens"}
    columns |= {"method": "method", "seconds": "seconds"}
    columns |= {"over_flash": "over flash", "over_stock": "over stock", "over_full": "over full"}
    columns |= {"over_short": "over its time at 16k", "of_floor": "of the floor", "peak_mib": "peak MiB"}
    script = "suite" if cases[0]["device"] == "cpu" else "gpu"
    lines = ["# Speed of attention and cache", "", f"`python benchmarks/{script}.py`, {machine_of(cases[0])}.", ""]
    lines += [
        "Ratios are medians of ratios within a round. Of the floor: the share reached of what the machine itself moves",
        "(decoding) or computes (prefill) in the same run. Peak: anonymous memory of a process with that method alone.",
        "",
        "## All cases",
        "",
        *markdown(cases, columns),
        "",
        "## Growth: time ~ length to the power of",
        "",
        *markdown(
            growth(cases),
            {"phase": "", "dtype": "", "method": "method", "exponent": "exponent", "lengths": "fitted to"},
        ),
        "",
    ]
    return "\n".join(lines)


def into_page(text: str, cases: Sequence[dict[str, str]], marks: tuple[str, str] = MARKS["speed"]) -> str:
    """The documentation's page on speed with its table of ratios between ``marks`` made anew.

    Raises:
        ValueError: it has not both marks, in their order.
    """
    table = markdown(ratios(cases), {"what": "", "over": "time of", "dtype": "", "ratio": "ratio"})
    return between(text, marks, [*table, "", f"{machine_of(cases[0])}."])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the CSV files of benchmarks/suite.py")
    parser.add_argument("--docs", action="store_true", help="also put the ratios into docs/benchmarks.md")
    args = parser.parse_args(argv)
    if not (args.folder / "cases.csv").exists():
        parser.error(f"{args.folder} has no cases.csv; run benchmarks/suite.py first")
    cases = load(args.folder / "cases.csv")
    (args.folder / "speed.md").write_text(page(cases))
    if args.docs:
        PAGE.write_text(into_page(PAGE.read_text(), cases, MARKS[args.folder.resolve().name]))
    where = machine_of(cases[0]).split(", torch")[0]
    prefills = "fp32" if cases[0]["device"] == "cpu" else "bf16"
    for phase, dtype, label in (("prefill", prefills, "seconds"), ("decode", "bf16", "seconds a token")):
        try:
            found = points(cases, phase, dtype)
        except ValueError as error:  # a run with --phases
            print(f"no picture of it: {error}", file=sys.stderr)
            continue
        draw(found, f"{phase.capitalize()}, {dtype}; {where}", label, args.folder / f"{phase}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
