"""Which layout answers best for what a text says: facts planted in novels, read inside the window by the stock model.

    python benchmarks/layouts.py NOVELS --model smollm2      # writes results/layouts/smollm2.json; goes on if stopped

Every layout reads the same texts and is asked the same questions, each alone.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import longspan
from longspan.documents.layout import NAMED
from longspan.loading.models import load_model, load_tokenizer
from longspan_eval.planted import PlantedItem, says
from planted import COUNT, Texts

OUT = Path(__file__).parent / "results" / "layouts"
LAYOUTS = (*NAMED, "plain")
LENGTH, ANSWER = 4096, 24  # tokens


def question_of(item: PlantedItem) -> str:
    """The question alone, as a person asks it, without the frame and the answer's beginning."""
    found = re.search(r"above\. (.*)\n\nAnswer:", item.question, re.DOTALL)
    assert found is not None
    return found[1]


def row(model: Any, tokenizer: Any, texts: Texts, layout: str, number: int) -> dict[str, Any]:
    """How many facts of a text are found under a layout, and the answers."""
    planted = texts.planted("facts", number, LENGTH)
    text = tokenizer.decode(planted.input_ids, skip_special_tokens=True)
    began = time.perf_counter()
    document = longspan.read(model, tokenizer, text, method="full", length=2 * LENGTH, layout=layout)
    read = time.perf_counter() - began
    answers = [document.ask(question_of(item), ANSWER).text for item in planted.asked]
    longspan.restore(model)
    found = [says(answer, item.value) for answer, item in zip(answers, planted.asked, strict=True)]
    return {
        "layout": layout, "text": number, "source": planted.source, "tokens": document.tokens, "asked": COUNT,
        "found": sum(found), "read_seconds": round(read, 1), "answers": answers,
        "values": [item.value for item in planted.asked],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("novels", type=Path, help="a folder of novels, each a .txt file")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--texts", type=int, default=3)
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    out = OUT / f"{Path(given.model).name}.json"
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if out.exists() else []
    done = {(one["layout"], one["text"]) for one in rows}
    model = load_model(given.model, dtype="float32")
    tokenizer = load_tokenizer(given.model, model)
    texts = Texts(given.novels, tokenizer)
    for number in range(given.texts):
        for layout in LAYOUTS:
            if (layout, number) in done:
                continue
            rows.append(row(model, tokenizer, texts, layout, number))
            print(f"{layout:>12}  text {number}  {rows[-1]['found']} of {COUNT}", flush=True)
            found = {one: sum(x["found"] for x in rows if x["layout"] == one) for one in LAYOUTS}
            about = {"model": given.model, "method": "full", "length": LENGTH, "found": found}
            out.write_text(json.dumps({**about, "rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
