"""The charts of the documentation, as SVG, from the results that are committed: each is drawn when its page is built.

python benchmarks/charts.py FOLDER         # the same as files, to look at
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

import beside
import real_report
from common import load
from real_table import from_json
from report import FOLDER, points

RESULTS_PAGE = Path(__file__).parents[1] / "docs" / "results.md"
WIDTH = 5.4  # inches: 10 points are then as large as the text of a page on a phone
INK = "#010203"  # becomes the colour of the text around
# Each has about three times the contrast of white and of the dark scheme's ground.
OWN, PEER = "#2f8fb0", "#7d858f"
COLOURS = {
    "DCA": OWN,
    "LongHeads": "#7f6bd0",
    "ESA": "#3a9a6b",
    "YaRN": "#c8712b",
    "StreamingLLM": "#d0506e",
    "stock": PEER,
}
COLOURS |= {"torch's flash attention": "#a8893a", "transformers, YaRN": PEER, "kvpress, SnapKV": "#c8712b"}
LOOK = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK) | {
    "svg.fonttype": "none",
    "svg.hashsalt": "longspan",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
}


def facts() -> str:
    """Facts found in novels, and perplexity, of the rows of README's table at its two lengths."""
    own = {
        (one.window, one.length, one.row): one
        for one in map(from_json, json.loads(real_report.RESULTS.read_text(encoding="utf-8")))
        if (one.model, one.kind) == ("smollm2", "facts")
    }
    figure, axes = _figure(2, 2, 6.8, width_ratios=[1.35, 1])
    for (left, right), (window, length) in zip(axes, real_report.FRONT_PLACES, strict=True):
        found = {
            label: one
            for label, specs in real_report.FRONT.items()
            if (one := next((own[at] for spec in specs if (at := (window, length, spec)) in own), None))
        }
        _dots(left, {label: (one.found / one.asked, *one.interval) for label, one in found.items()})
        left.set(title=f"{length:,} tokens, a window of {window:,}", xlabel="facts found", xlim=(0, 1))
        left.set_xticks([0, 0.5, 1], ["0", "50%", "100%"])
        ratios = {
            label: (one.ratio, *(one.ratio_interval or (one.ratio, one.ratio)))
            for label, one in found.items()
            if one.ratio is not None and one.ratio < 2
        }
        _dots(right, {label: ratios.get(label) for label in found})
        right.set(xlabel="perplexity, relative", xlim=(0.95, 1.15), yticklabels=[])
        right.set_xticks([1, 1.05, 1.1], ["1", "1.05", "1.1"])
        for at, (label, one) in enumerate(found.items()):
            if one.ratio is not None and label not in ratios:
                right.text(1.148, at, f"{one.ratio:.0f} →", ha="right", va="center")
    return _svg(
        figure, "Facts found in novels and perplexity by method, at 4,096 and at 16,384 tokens, with 95% intervals"
    )


def peers() -> str:
    """Medians of ``beside.json``, one thread: each measure of each contestant at its two lengths."""
    rows: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for key, one in beside.results().items():
        _, threads, length, name, _ = key.split("|")
        if threads == "1":
            rows.setdefault((int(length), name), []).append(one)
    shown = {
        "llama.cpp": "llama.cpp",
        "llama.cpp, Q4_0": "llama.cpp Q4_0",
        "transformers": "transformers",
        "longspan, DCA": "longspan dca as-is,bfloat16",
        "longspan, ESA": "longspan esa:share=group as-is,bfloat16",
        "longspan, LongHeads": "longspan longheads:chunk_length=16,score=bounds as-is,bfloat16",
    }
    lengths = sorted({length for length, _ in rows})
    columns = {"read": "ms to read a token", "next": "ms to write a token"}
    figure, axes = _figure(len(lengths), len(columns), 4.4, sharey=True)
    for row, length in zip(axes, lengths, strict=True):
        row[0].set_title(f"{length:,} tokens")
        for axis, (column, title) in zip(row, columns.items(), strict=True):
            _bars(
                axis,
                list(shown),
                [
                    median(one[column] for one in rows[length, name]) if (length, name) in rows else None
                    for name in shown.values()
                ],
            )
            axis.set_xlabel(title)
    return _svg(
        figure, "Milliseconds to read and to write a token: llama.cpp, transformers and longspan, at two lengths"
    )


def prefill() -> str:
    """Seconds of a layer's prefill by length."""
    return _by_length("prefill", "fp32", "seconds to read the text")


def decode() -> str:
    """Seconds of a token by length."""
    return _by_length("decode", "bf16", "seconds a token")


def _by_length(phase: str, dtype: str, label: str) -> str:
    found = points(load(FOLDER / "cases.csv"), phase, dtype)
    names = {
        "flash": "torch's flash attention",
        "stock": "transformers, YaRN",
        "kvpress": "kvpress, SnapKV",
        "dca": "DCA",
    }
    names |= {"longheads": "LongHeads", "esa": "ESA"}
    lines = {names[name]: by_length for name, by_length in found.items() if name in names}
    figure, axes = _figure(1, 1, 3.5)
    axis = axes[0][0]
    _lines(axis, lines)
    axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
    ticks = sorted({n for by_length in lines.values() for n in by_length})
    axis.set_xticks(ticks, [f"{n // 1024}k" for n in ticks])
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    return _svg(figure, f"{label.capitalize()}, by length and method; lower is better")


def toy() -> str:
    """Pass keys found and perplexity of the bundled model by windows, from the table of docs/results.md."""
    rows = re.findall(
        r"^\| (.+?) \|((?: \d+/\d+ \|){4})((?: [\d.]+ \|?){4})$", RESULTS_PAGE.read_text(encoding="utf-8"), re.M
    )
    names = {
        "stock": "stock",
        "`yarn`": "YaRN",
        "`dca`": "DCA",
        '`longheads`, `score="bounds"`': "LongHeads",
        "`esa`": "ESA",
    }
    names |= {"`streaming-llm`": "StreamingLLM"}
    windows = (4, 16, 32, 64)
    found: dict[str, dict[int, float]] = {}
    perplexity: dict[str, dict[int, float]] = {}
    for name, keys, losses in rows:
        if name in names:
            shares = [int(a) / int(b) for a, b in re.findall(r"(\d+)/(\d+)", keys)]
            found[names[name]] = dict(zip(windows, shares, strict=True))
            perplexity[names[name]] = dict(zip(windows, map(float, re.findall(r"[\d.]+", losses)), strict=True))
    figure, ((above,), (below,)) = _figure(2, 1, 5.6)
    _lines(above, found)
    above.set(xscale="log", ylabel="pass keys found")
    above.set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    _lines(below, perplexity, legend=False)
    below.set(xscale="log", yscale="log", ylabel="perplexity", xlabel="length of the text in windows")
    below.set_yticks(ticks := [35, 50, 100, 200, 400], map(str, ticks))
    for axis in (above, below):
        axis.set_xticks(windows, [f"{n}x" for n in windows])
        axis.minorticks_off()
    return _svg(figure, "Pass keys found by the bundled model, and its perplexity, by method, at 4 to 64 windows")


CHARTS: Mapping[str, Callable[[], str]] = {one.__name__: one for one in (facts, peers, prefill, decode, toy)}


def draw(name: str) -> str:
    """A chart as an SVG element.

    Raises:
        ValueError: there is none of this name.
    """
    import matplotlib

    if name not in CHARTS:
        raise ValueError(f"there is no chart {name!r}; there are {', '.join(CHARTS)}")
    matplotlib.use("Agg")
    with matplotlib.rc_context(LOOK):
        return CHARTS[name]()


def _figure(rows: int, columns: int, high: float, **options: Any) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    ratios = {"width_ratios": options.pop("width_ratios")} if "width_ratios" in options else None
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH, high), squeeze=False, layout="constrained", gridspec_kw=ratios, **options
    )
    for axis in axes.flat:
        axis.grid(alpha=0.18, color=INK, linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def _dots(axis: Any, rows: Mapping[str, tuple[float, float, float] | None]) -> None:
    """A dot and its interval for each row, the first on top."""
    for at, (label, one) in enumerate(rows.items()):
        if one is not None:
            colour = PEER if label.startswith("the stock") else OWN
            axis.plot([one[1], one[2]], [at, at], color=colour, linewidth=2.2, alpha=0.55, solid_capstyle="round")
            axis.plot([one[0]], [at], "o", color=colour, markersize=5.5)
    _rows(axis, [fill(label.replace("`", ""), 26) for label in rows])


def _bars(axis: Any, labels: Sequence[str], values: Sequence[float | None]) -> None:
    colours = [OWN if one.startswith("longspan") else PEER for one in labels]
    axis.barh(range(len(labels)), [value or 0 for value in values], color=colours, height=0.66)
    for at, value in enumerate(values):
        axis.text(value or 0, at, f" {value:.3g}" if value else " not measured", va="center")
    axis.set_xlim(0, max(filter(None, values)) * 1.25)
    axis.grid(visible=False, axis="y")
    _rows(axis, labels)


def _rows(axis: Any, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _lines(axis: Any, lines: Mapping[str, Mapping[int, float]], legend: bool = True) -> None:
    for (name, by_length), marker in zip(lines.items(), "osv^Dx*", strict=False):
        lengths = sorted(by_length)
        values = [by_length[n] for n in lengths]
        axis.plot(lengths, values, color=COLOURS[name], marker=marker, markersize=5, linewidth=1.8, label=name)
    if legend:
        axis.legend(fontsize=9, frameon=False, ncols=2, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1))


def _svg(figure: Any, label: str) -> str:
    """The figure as an element of a page: no style sheet that would reach beyond it, no name twice, the page's font."""
    import matplotlib.pyplot as plt

    out = StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue().replace(INK, "currentColor")
    text = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL
    )
    text = re.sub(r' id="(?:figure|axes|patch|line2d|text|legend|xtick|ytick|matplotlib|LineC|FillB)[^"]*"', "", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d)\d+", r"\1", tag[0]), text)
    box = re.search(r'viewBox="[^"]*"', text)
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg class="chart" role="img" aria-label="{label}" {names} {box[0] if box else ""}>'
    return re.sub(r"\s*\n\s*", " ", head + text[text.index(">") + 1 :]).strip()


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in CHARTS:
        (folder / f"{name}.svg").write_text(draw(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
