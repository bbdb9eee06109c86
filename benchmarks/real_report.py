"""What real models did, as JSON, and as tables in docs/real-models.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from common import between
from longspan_eval.report.markdown import table_of
from longspan_eval.sample import Sample
from real_table import CUT, Summary, as_json, base_of, summaries

PAGE = Path(__file__).parents[1] / "docs" / "real-models.md"
MARKS = "<!-- board -->", "<!-- /board -->"


def write(samples: Mapping[str, Sample], out: Path, page: Path = PAGE) -> None:
    """Write real.json of all samples into a folder, and the tables between the marks of a page."""
    found = summaries(samples)
    lines = ",\n".join(json.dumps(as_json(one), allow_nan=False) for one in found)
    (out / "real.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    text = between(page.read_text(encoding="utf-8"), MARKS, ["", *sections(found)])
    page.write_text(text, encoding="utf-8")


def sections(found: list[Summary]) -> Iterator[str]:
    """One for each model, kind, window and length; its rows best first by what is found, after stock."""
    for (model, kind, window, length), group in groupby(found, lambda x: (x.model, x.kind, x.window, x.length)):
        rows = sorted(group, key=lambda x: (x.row not in ("stock", CUT), -x.found / max(x.asked, 1)))
        yield f"### {model}: {kind}, {length:,} tokens, a window of {window:,}\n"
        base = base_of(model, length)
        yield table_of(["", "found", f"of {base}'s", "perplexity", "ms a token"], map(cells, rows)) + "\n"


def cells(one: Summary) -> list[str]:
    """A row."""
    name = one.row if one.row == CUT else f"`{one.row}`"
    if one.error is not None:
        return [name, one.error, "", "", ""]
    low, high = one.interval
    ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
    if one.ratio_interval is not None and one.row != base_of(one.model, one.length):
        ratio += f" ({one.ratio_interval[0]:.3f}-{one.ratio_interval[1]:.3f})"
    if one.row == base_of(one.model, one.length) and one.perplexity is not None:
        ratio = f"1 ({one.perplexity:.2f})"
    share = "" if not one.ceiling else f"{one.found / one.ceiling:.2f}"
    return [name, f"{one.found}/{one.asked} ({100 * low:.0f}-{100 * high:.0f})", share, ratio, f"{1000 * one.read:.2f}"]
