"""The generated blocks of the documentation, each between its two marks, from the results that are committed.

python benchmarks/blocks.py                # makes them anew
python benchmarks/blocks.py --check        # names those that are not up to date; `make docs-check`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import beside
import doctor
import documents
import drafting
import levels
import passages
import real_report
import report
import serve
import weights
from common import between, load

ROOT = Path(__file__).parents[1]


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


BLOCKS: Mapping[Path, Callable[[str], str]] = {
    ROOT / "README.md": lambda text: between(
        text, real_report.FRONT_MARKS, real_report.front(_json(real_report.RESULTS))
    ),
    report.PAGE: lambda text: report.into_page(text, load(report.FOLDER / "cases.csv")),
    levels.PAGE: lambda text: between(text, levels.MARKS, levels.table()),
    ROOT / "docs" / "drafting.md": lambda text: between(text, drafting.MARKS, drafting.table(drafting.results())),
    doctor.PAGE: lambda text: between(text, doctor.MARKS, doctor.table()),
    serve.PAGE: lambda text: between(text, serve.MARKS, serve.table(_json(serve.RESULTS))),
    ROOT / "docs" / "weights.md": lambda text: between(text, weights.MARKS, weights.table()),
    ROOT / "docs" / "beside.md": lambda text: between(text, beside.MARKS, beside.table(beside.results())),
    real_report.PAGE: lambda text: real_report.into_page(text, _json(real_report.RESULTS)),
    ROOT / "docs" / "documents.md": lambda text: between(
        between(text, documents.MARKS, documents.table(_json(documents.RESULTS))),
        passages.MARKS,
        passages.table(_json(passages.RESULTS)),
    ),
}


def outdated() -> list[Path]:
    """The documents with a block that their results would make otherwise."""
    texts = {path: path.read_text(encoding="utf-8") for path in BLOCKS}
    return [path for path, text in texts.items() if BLOCKS[path](text) != text]


def main() -> int:
    old = outdated()
    if "--check" in sys.argv[1:]:
        for path in old:
            print(f"{path.relative_to(ROOT)} is not up to date; run python benchmarks/blocks.py")
        return 1 if old else 0
    for path in old:
        path.write_text(BLOCKS[path](path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
