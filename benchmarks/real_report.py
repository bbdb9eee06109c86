"""The tables of real models as JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from longspan_eval.report.markdown import table_of
from longspan_eval.sample import Sample
from real_table import CUT, Summary, as_json, summaries


def write(samples: Mapping[str, Sample], out: Path) -> None:
    """Write real.json and real.md of all samples."""
    found = summaries(samples)
    lines = ",\n".join(json.dumps(as_json(one), allow_nan=False) for one in found)
    (out / "real.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    (out / "real.md").write_text(markdown(found), encoding="utf-8")


def markdown(found: list[Summary]) -> str:
    """A section for each model, kind, window and length; best first by what is found."""
    parts = [
        "# Real models",
        "Written by `python benchmarks/real.py --table-only`. Found: right answers of those asked (95% Wilson interval "
        "in percent); of stock's: over the stock model's on the same texts, which sees all of the text in its true "
        "window; perplexity: of the last 2,048 tokens, over the stock model's of the same tokens (95% Student interval "
        "over texts); a token: time of one core to read one, in ms.",
    ]
    for (model, kind, window, length), group in groupby(found, lambda x: (x.model, x.kind, x.window, x.length)):
        rows = sorted(group, key=lambda x: (x.row not in ("stock", CUT), -x.found / max(x.asked, 1)))
        parts.append(f"## {model}: {kind}, {length:,} tokens, a window of {window:,}")
        parts.append(table_of(["", "found", "of stock's", "perplexity", "a token"], map(cells, rows)))
    return "\n\n".join(parts) + "\n"


def cells(one: Summary) -> list[str]:
    """A row."""
    name = one.row if one.row == CUT else f"`{one.row}`"
    if one.error is not None:
        return [name, one.error, "", "", ""]
    low, high = one.interval
    ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
    if one.ratio_interval is not None and one.row != "stock":
        ratio += f" ({one.ratio_interval[0]:.3f}-{one.ratio_interval[1]:.3f})"
    if one.row == "stock" and one.perplexity is not None:
        ratio = f"1 ({one.perplexity:.2f})"
    share = "" if not one.ceiling else f"{one.found / one.ceiling:.2f}"
    return [name, f"{one.found}/{one.asked} ({100 * low:.0f}-{100 * high:.0f})", share, ratio, f"{1000 * one.read:.2f}"]
