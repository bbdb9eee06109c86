"""What real models did, as JSON, and as tables in docs/real-models.md and README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from common import between
from longspan_eval.report.markdown import table_of
from longspan_eval.sample import Sample
from longspan_eval.spec import STOCK
from real_table import CUT, Summary, as_json, base_of, from_json, summaries

PAGE = Path(__file__).parents[1] / "docs" / "real-models.md"
RESULTS = Path(__file__).parent / "results" / "real" / "real.json"
MARKS = "<!-- board -->", "<!-- /board -->"
FRONT_MARKS = "<!-- real -->", "<!-- /real -->"
FRONT = {  # the rows of README.md: how they are called, and what they are in its columns, the first that there is
    "the stock model": (STOCK,),
    "the stock model on the end of the text alone": (CUT,),
    "YaRN": ("yarn",),
    "DCA": ("dca",),
    'ESA, `share="group"`': ("esa:share=group",),
    "LongHeads, chunks of 16 by bounds": (  # at a window of 1,024 they are one
        "longheads:chunk_length=16,score=bounds",
        "longheads:chunk_length=16,num_chunks=64,local_chunks=8,score=bounds",
    ),
    "LongHeads, the paper's sizes and score": ("longheads",),
    "InfLLM": ("infllm",),
}
FRONT_PLACES = ((1024, 4096), (8192, 16_384))  # windows and lengths, in its columns


def write(samples: Mapping[str, Sample], out: Path, page: Path = PAGE) -> None:
    """Write real.json of all samples into a folder, and the tables between the marks of a page."""
    found = [as_json(one) for one in summaries(samples)]
    lines = ",\n".join(json.dumps(one, allow_nan=False) for one in found)
    (out / RESULTS.name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    page.write_text(into_page(page.read_text(encoding="utf-8"), found), encoding="utf-8")


def into_page(text: str, found: list[dict[str, Any]]) -> str:
    """The text of the page with the tables of real.json."""
    return between(text, MARKS, ["", *sections([from_json(one) for one in found])])


def sections(found: list[Summary]) -> Iterator[str]:
    """One for each model, kind, window and length; its rows best first by what is found, after stock."""
    for (model, kind, window, length), group in groupby(found, lambda x: (x.model, x.kind, x.window, x.length)):
        rows = sorted(group, key=lambda x: (x.row not in ("stock", CUT), -x.found / max(x.asked, 1)))
        yield f"### {model}: {kind}, {length:,} tokens, a window of {window:,}\n"
        base = base_of(model, length)
        yield table_of(["", "found", f"of {base}'s", "perplexity", "ms a token"], map(cells, rows)) + "\n"


def front(found: list[dict[str, Any]]) -> list[str]:
    """README's table: facts found by ``smollm2`` and how well it predicts, at a declared window and beyond its own."""
    own = {
        (one.window, one.length, one.row): one
        for one in map(from_json, found)
        if (one.model, one.kind) == ("smollm2", "facts")
    }
    columns = [""]
    rows = [[label] for label in FRONT]
    for window, length in FRONT_PLACES:
        columns += [f"{length:,} tokens: found", "95%", "perplexity", "95%"]
        for row, specs in zip(rows, FRONT.values(), strict=True):
            one = next((own[at] for spec in specs if (at := (window, length, spec)) in own), None)
            row += [""] * 4 if one is None else [half for cell in cells(one)[1:4:2] for half in _apart(cell)]
    return table_of(columns, rows).splitlines()


def _apart(cell: str) -> tuple[str, str]:
    """A figure and its interval; the brackets of a base, which has none, stay with it."""
    figure, _, rest = cell.partition(" (")
    return (cell, "") if "-" not in rest else (figure, rest.removesuffix(")"))


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
