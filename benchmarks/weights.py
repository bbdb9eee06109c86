"""What each form of the weights costs: perplexity of novels, facts found in them, and bytes, beside float32.

    python benchmarks/weights.py NOVELS --model smollm2      # writes results/weights/smollm2.json; goes on if stopped
    python benchmarks/weights.py NOVELS --model qwen-coder --read 3 --asked 0 --forms fp32:float32 as-is:bfloat16

The model attends as the stock one does, inside its window. Perplexity is of the last tokens of each text, whose first
half is read before them.
"""

from __future__ import annotations

import argparse
import itertools
import json
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import longspan
from layouts import question_of
from longspan.loading.models import load_model, load_tokenizer
from longspan_eval.planted import says
from planted import COUNT, Texts

OUT = Path(__file__).parent / "results" / "weights"
MARKS = "<!-- weights -->", "<!-- /weights -->"
PACKED = (("as-is", "int8", "int4"), ("float32", "mixed", "bfloat16"))
FORMS = (("fp32", "float32"), ("bf16", "bfloat16"), *itertools.product(*PACKED))
NAMES = {"smollm2": "SmolLM2-135M-Instruct", "qwen-coder": "Qwen2.5-Coder-0.5B-Instruct"}
LENGTH, FACTS_LENGTH, ANSWER = 2048, 4096, 24  # tokens


def loss(model: Any, ids: torch.Tensor) -> float:
    """The mean over the second half of ``[T]`` tokens."""
    half = len(ids) // 2
    with torch.no_grad(), longspan.extended(model, "full"):  # which keeps keys and values as the dtype says
        logits = model(ids[None], logits_to_keep=len(ids) - half + 1).logits[0, :-1].float()
    return float(torch.nn.functional.cross_entropy(logits, ids[half:]))


def found(model: Any, tokenizer: Any, texts: Texts, number: int) -> int:
    planted = texts.planted("facts", number, FACTS_LENGTH)
    text = tokenizer.decode(planted.input_ids, skip_special_tokens=True)
    document = longspan.read(model, tokenizer, text, method="full", length=2 * FACTS_LENGTH, layout="quoted")
    right = sum(says(document.ask(question_of(item), ANSWER).text, item.value) for item in planted.asked)
    longspan.restore(model)
    return right


def row(name: str, form: str, dtype: str, tokenizer: Any, texts: Texts, read: int, asked: int) -> dict[str, Any]:
    model = load_model(name, weights=form, dtype=dtype, device="cpu")
    size = sum({x.data_ptr(): x.nbytes for x in model.parameters()}.values())
    losses = [loss(model, torch.tensor(texts.planted("facts", n, LENGTH).input_ids)) for n in range(read)]
    right = [found(model, tokenizer, texts, n) for n in range(asked)]
    return {"form": form, "dtype": dtype, "bytes": size, "losses": losses, "found": right}


def table(results: Path = OUT) -> list[str]:
    """A line for each model and form, from the committed results."""
    head = "model", "weights", "dtype", "MB of weights", "perplexity over fp32's", "facts found"
    lines = [f"| {' | '.join(head)} |", "| --- | --- | --- |" + " ---: |" * 3]
    for path in sorted(results.glob("*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        rows.sort(key=lambda one: FORMS.index((one["form"], one["dtype"])))
        exact = next(one["losses"] for one in rows if one["form"] == "fp32")
        for one in rows:
            ratio = exp(fmean(a - b for a, b in zip(one["losses"], exact, strict=True)))
            asked = f"{sum(one['found'])} of {COUNT * len(one['found'])}" if one["found"] else ""
            cells = NAMES.get(path.stem, path.stem), f"`{one['form']}`", one["dtype"], f"{one['bytes'] / 1e6:,.0f}"
            lines.append(f"| {' | '.join(cells)} | {ratio:.4f} | {asked} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("novels", type=Path, help="a folder of novels, each a .txt file")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--read", type=int, default=6, help="novels whose perplexity is taken")
    parser.add_argument("--asked", type=int, default=3, help="novels whose planted facts are asked")
    parser.add_argument("--forms", nargs="+", help="FORM:DTYPE; default: all")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    out = OUT / f"{Path(given.model).name}.json"
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if out.exists() else []
    tokenizer = load_tokenizer(given.model)
    texts = Texts(given.novels, tokenizer)
    forms = FORMS if given.forms is None else tuple(tuple(one.split(":")) for one in given.forms)
    for form, dtype in forms:
        if any((one["form"], one["dtype"]) == (form, dtype) for one in rows):
            continue
        rows.append(row(given.model, form, dtype, tokenizer, texts, given.read, given.asked))
        about = {"model": given.model, "tokens": [LENGTH, FACTS_LENGTH], "torch": torch.__version__}
        out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        print("\n".join(table()), flush=True)


if __name__ == "__main__":
    main()
