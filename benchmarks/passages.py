"""How often the passages of a right answer begin with the sentence that has it.

    python benchmarks/passages.py --model smollm2 --texts NOVELS --rows "full;0;4096 dca;1024;4096" --numbers 0-9
    python benchmarks/passages.py                          # what has been measured

Ten facts are planted in each novel, which a model reads as a document under a row's method, declared window and length
in tokens. For each question that it answers right, the sentence with the fact is looked for among the passages. NOVELS
is a folder of .txt files. Every text is on disk as soon as it is measured, and the same command goes on. One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import longspan
from longspan.documents import Document
from longspan.files import write
from longspan.loading.models import load
from longspan_eval.planted import Planted, says
from planted import Texts

RESULTS = Path(__file__).parent / "results" / "passages.json"
MARKS = "<!-- passages -->", "<!-- /passages -->"
FRAME = "\n\n---\n\nA question about the text above. "
LAYOUT = "{document}" + FRAME + "{question}"
MODELS = {"smollm2": "SmolLM2-135M-Instruct", "qwen-coder": "Qwen2.5-Coder-0.5B-Instruct"}
NEW_TOKENS = 8


def measure(document: Document, planted: Planted) -> list[dict[str, Any]]:
    """Each question's answer, the place of its fact among the passages, and what both cost in seconds of the CPU."""
    found, lifts = list[dict[str, Any]](), list[torch.Tensor]()
    document.attended(document.prompt("Who?"), [0])  # the neutral question, once for a document
    for one in planted.asked:
        ids, cache = document.prompt(one.question.removeprefix(FRAME)), document.cache()
        began = time.process_time()
        answer = document.go_on(ids, NEW_TOKENS, cache=cache)
        answered = time.process_time()
        own = cache if document.go_back(cache, len(ids) - 1) else None
        seen = document.attended(ids, answer.tokens, cache=own)
        passages, statement = seen.passages(), " ".join(one.statement.split())
        seconds = round(answered - began, 3), round(time.process_time() - answered, 3)
        right = says(answer.text, one.value)
        texts = [" ".join((passage.text or "").split()) for passage in passages]
        rank = next((n for n, text in enumerate(texts) if statement in text), None)
        found.append({"right": right, "said": answer.text, "value": one.value, "rank": rank, "seconds": seconds})
        if right:
            lifts.append(seen.lifts())
    related = torch.corrcoef(torch.stack(lifts)) if len(lifts) > 1 else None
    pairs = None if related is None else related[torch.triu_indices(len(lifts), len(lifts), 1).unbind()]
    return [one | {"correlation": None if pairs is None else round(float(pairs.mean()), 4)} for one in found]


def rows(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """The table: for each model, method, window and length what was asked and how often the fact came first."""
    texts: dict[tuple[str, ...], list[list[dict[str, Any]]]] = defaultdict(list)
    for key, own in found.items():
        model, method, window, length, _ = key.split("|")
        texts[model, method, window, length].append(own)
    lines = []
    for (model, method, window, length), own in texts.items():
        asked = [one for text in own for one in text]
        right = [one for one in asked if one["right"]]
        if not right:
            continue
        first, three = (sum(one["rank"] is not None and one["rank"] < n for one in right) for n in (1, 3))
        related = [text[0]["correlation"] for text in own if text[0]["correlation"] is not None]
        cost = median(one["seconds"][1] / one["seconds"][0] for one in asked)
        n = len(right)
        lines.append([
            MODELS.get(model, model), f"`{method}`", f"{int(window):,}", f"{int(length):,}", f"{n} of {len(asked)}",
            f"{first / n:.0%}", f"{three / n:.0%}", f"{fmean(related):.2f}" if related else "", f"{cost:.2f}",
        ])  # fmt: skip
    return lines


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    head = "model", "method", "window", "tokens", "right", "first", "among three", "correlation", "cost"
    return [
        f"| {' | '.join(head)} |",
        "|" + " --- |" * 4 + " ---: |" * 5,
        *(f"| {' | '.join(r)} |" for r in rows(found)),
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a name that `longspan fetch` knows, or a path")
    parser.add_argument("--texts", type=Path, help="folder of novels, each a .txt file")
    parser.add_argument(
        "--rows", help="METHOD;WINDOW;LENGTH, several with spaces between; a window of 0 is the model's"
    )
    parser.add_argument("--numbers", default="0-9", help="of the texts, FIRST-LAST")
    return parser.parse_args()


def main() -> None:
    args = parse()
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if args.model:
        model, tokenizer = load(args.model, dtype="float32", device="cpu")
        texts = Texts(args.texts, tokenizer)
        first, _, last = args.numbers.partition("-")
        every = [row.split(";") for row in args.rows.split()]
        own_window = model.config.max_position_embeddings
        for number in range(int(first), int(last or first) + 1):
            for method, declared, tokens in every:
                window, length = int(declared) or own_window, int(tokens)
                key = f"{args.model}|{method}|{window}|{length}|{number}"
                if key in found:
                    continue
                planted = texts.planted("facts", number, length)
                text = tokenizer.decode(planted.input_ids)
                longspan.restore(model)
                document = longspan.read(
                    model, tokenizer, text, method=method, window=window, layout=LAYOUT, length=length
                )
                found[key] = measure(document, planted)
                lines = (f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in sorted(found))
                write(RESULTS, "{\n" + ",\n".join(lines) + "\n}\n")
                right = sum(one["right"] for one in found[key])
                print(time.strftime("%H:%M:%S"), key, f"{right} right", [one["rank"] for one in found[key]], flush=True)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
