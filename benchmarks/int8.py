"""Documents in int8 beside exact ones: their size, what they predict and answer, and the time of a token.

    python benchmarks/int8.py --texts NOVELS              # all methods; one file of results for each
    python benchmarks/int8.py --texts NOVELS --time-only  # the time of a token alone, put into those files
    python benchmarks/int8.py --docs                      # the table of docs/documents.md from the results

A real model reads novels into documents under a declared window of 1,024, in prefill chunks of 1,024, in both forms.
The last quarter of a text is predicted after a document of the rest; then the document takes it in, and ten facts that
were planted in the novel are asked. NOVELS is a folder of .txt files.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import longspan
from common import between, machine
from documents import Bar
from longspan.documents.contents import Contents, attached
from longspan.documents.manifest import KV
from longspan.documents.reading import Unnamed, forward, read_on
from longspan.documents.segments import bytes_of
from longspan.hf.cache import LongspanCache
from longspan.loading.models import load
from longspan_eval.generate import decode, told
from longspan_eval.planted import Planted, says
from longspan_eval.tasks.fragments import piece
from planted import Texts

RESULTS, DOCS = (Path(__file__).parent / at for at in ("results/int8", "../docs/documents.md"))
MARKS = "<!-- int8 -->", "<!-- /int8 -->"
METHODS = {"bounds": "longheads:chunk_length=16,score=bounds", "dca": "dca", "infllm": "infllm"}
WINDOW, PREFILL_CHUNK = 1024, 1024
NEW_TOKENS = 12
ROUNDS = 40


class Reader:
    """A model under one method, and what it makes of token ids."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer, self.attachment = model, tokenizer, attached(model)

    def read(self, contents: Contents, ids: Tensor) -> Contents:
        """``contents`` with the tokens ``[T]`` behind them."""
        longer = contents.with_text(ids, torch.zeros(len(ids), 2, dtype=torch.int64), "", [])
        return read_on(self.model, self.attachment, longer, PREFILL_CHUNK, Unnamed())

    def cache(self, contents: Contents) -> LongspanCache:
        return contents.cache(self.model, self.attachment)

    def loss(self, contents: Contents, ids: Tensor) -> float:
        """Nats of a token of ``[T]`` behind the document, the first one left out."""
        logits = forward(self.model, ids, self.cache(contents), len(ids))
        return float(torch.nn.functional.cross_entropy(logits[:-1], ids[1:]))

    def answer(self, contents: Contents, question: str, value: str) -> str:
        cache, ids = self.cache(contents), torch.tensor(piece(self.tokenizer, question))
        tokens = decode(self.model, forward(self.model, ids, cache)[None], cache, NEW_TOKENS)

        def done(text: str) -> bool:
            return "." in text or "\n" in text.lstrip() or (value.isalpha() and says(text, value))

        return told(self.tokenizer, islice(tokens, NEW_TOKENS), done)[1]


def size_of(contents: Contents) -> dict[str, int]:
    """Bytes of the entries of all streams, and what they would be if the model ran in bf16 (its scales stay fp32)."""
    size = in_bf16 = 0
    for n, stream in enumerate(contents.streams):
        count = max(segment.spans[n].stop for segment in contents.segments if n < len(segment.spans))
        own = stream.heads * count * bytes_of(stream)
        scales = stream.name.endswith("scales")
        size += own
        in_bf16 += own if stream.dtype != "float32" or scales else own // 2
    return {"bytes": size, "bytes_in_bf16": in_bf16}


@torch.inference_mode()
def measured(reader: Reader, text: Planted) -> dict[str, Any]:
    """One text in both forms."""
    ids = torch.tensor(text.input_ids)
    cut = len(ids) * 3 // 4 // PREFILL_CHUNK * PREFILL_CHUNK
    found: dict[str, Any] = {"source": text.source, "tokens": len(ids)}
    for kv in KV:
        begun = time.process_time()
        contents = reader.read(Contents(kv=kv), ids[:cut])
        loss = reader.loss(contents, ids[cut:])
        contents = reader.read(contents, ids[cut:])
        answers = [" ".join(reader.answer(contents, one.question, one.value).split()) for one in text.asked]
        right = sum(says(said, one.value) for said, one in zip(answers, text.asked, strict=True))
        found[kv] = {"loss": loss, "right": right, "answers": answers, **size_of(contents)}
        found[kv]["cpu_seconds"] = round(time.process_time() - begun, 2)
        contents.close()
    return found


@torch.inference_mode()
def timed(reader: Reader, text: Planted) -> dict[str, float]:
    """CPU seconds of a decoded token behind both forms, in turns, and of a cache with a question of 32 tokens."""
    ids = torch.tensor(text.input_ids)
    contents = {kv: reader.read(Contents(kv=kv), ids) for kv in KV}
    began, caches = {}, {}
    for kv in KV:
        spent = []
        for _ in range(5):
            caches[kv], seconds = clocked(lambda kv=kv: reader.cache(contents[kv]))
            _, more = clocked(lambda kv=kv: forward(reader.model, ids[:32], caches[kv]))
            spent.append(seconds + more)
        began[kv] = statistics.median(spent)
    rounds: list[dict[str, float]] = []
    for n in range(ROUNDS):
        token = ids[n : n + 1]
        order = KV if n % 2 else KV[::-1]
        rounds.append({kv: clocked(lambda kv=kv, t=token: forward(reader.model, t, caches[kv]))[1] for kv in order})
    return {
        "token_over_exact": statistics.median(each["int8"] / each["exact"] for each in rounds),
        "question_over_exact": began["int8"] / began["exact"],
        **{f"token_{kv}": statistics.median(each[kv] for each in rounds) for kv in KV},
        **{f"question_{kv}": began[kv] for kv in KV},
    }


def clocked(run: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    return run(), time.process_time() - begun


def summary(held: dict[str, Any]) -> dict[str, float]:
    """The figures of a method that bars and table show."""
    texts = held["texts"]
    losses = {kv: statistics.fmean(text[kv]["loss"] for text in texts) for kv in KV}
    pairs = [pair for text in texts for pair in zip(*(text[kv]["answers"] for kv in KV), strict=True)]
    sizes = {key: [sum(text[kv][key] for text in texts) for kv in KV] for key in ("bytes", "bytes_in_bf16")}
    return {
        "size": sizes["bytes"][1] / sizes["bytes"][0],
        "size_in_bf16": sizes["bytes_in_bf16"][1] / sizes["bytes_in_bf16"][0],
        "perplexity": math.exp(losses["exact"]),
        "perplexity_over_exact": math.exp(losses["int8"] - losses["exact"]),
        "asked": len(pairs),
        "same_answers": sum(a == b for a, b in pairs),
        "right_exact": sum(text["exact"]["right"] for text in texts),
        "right_int8": sum(text["int8"]["right"] for text in texts),
        **held["time"],
    }


def bars(name: str, held: dict[str, Any]) -> list[Bar]:
    """The figures of a method beside their bars."""
    x = summary(held)
    off = abs(x["perplexity_over_exact"] - 1)
    return [
        Bar(f"{name}: size in bf16", f"{x['size_in_bf16']:.3f} of exact", "at most 0.6", x["size_in_bf16"] <= 0.6),
        Bar(f"{name}: perplexity", f"{x['perplexity_over_exact'] - 1:+.3%}", "within 0.5%", off <= 0.005),
        Bar(
            f"{name}: facts found",
            f"{x['right_int8']} and {x['right_exact']} of {x['asked']}",
            "as many",
            x["right_int8"] == x["right_exact"],
        ),
    ]


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The rows of docs/documents.md."""
    rows = ["| int8 over exact | size, fp32 | size, bf16 | perplexity | facts found | same answers | decoded token |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- |")
    for held in found.values():
        x = summary(held)
        rows.append(
            f"| `{held['method']}` | {x['size']:.2f} | {x['size_in_bf16']:.2f} | "
            f"{x['perplexity_over_exact'] - 1:+.2%} | "
            f"{x['right_int8']} and {x['right_exact']} of {x['asked']} | {x['same_answers']} of {x['asked']} | "
            f"{x['token_over_exact']:.2f} times |"
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, help="folder of novels, each a .txt file")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--length", type=int, default=4096, help="tokens of a text")
    parser.add_argument("--count", type=int, default=3, help="texts, with ten facts each")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--time-only", action="store_true", help="measure the time of a token alone")
    parser.add_argument("--docs", action="store_true", help="write the table of docs/documents.md from the results")
    args = parser.parse_args()
    if args.docs:
        files = {name: args.out / f"{name}.json" for name in METHODS}
        found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
        DOCS.write_text(between(DOCS.read_text(), MARKS, table(found)))
        return 0
    if args.texts is None:
        parser.error("give --texts, a folder of novels, or --docs")
    torch.set_num_threads(1)
    model, tokenizer = load(args.model, dtype="float32", device="cpu")
    texts, beside = Texts(args.texts, tokenizer), []
    for name in args.methods:
        path, method = args.out / f"{name}.json", METHODS[name]
        with longspan.extended(model, method, window=WINDOW):
            reader = Reader(model, tokenizer)
            planted = [texts.planted("facts", n, args.length) for n in range(args.count)]
            kept = json.loads(path.read_text())["texts"] if args.time_only else [measured(reader, x) for x in planted]
            held = {"method": method, "model": args.model, "window": WINDOW, "length": args.length, "texts": kept}
            held["time"] = timed(reader, planted[0])
        held["summary"] = summary(held)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**held, **machine(1)}, indent=1) + "\n")
        beside += bars(name, held)
        print(*bars(name, held), json.dumps(held["summary"]), sep="\n", flush=True)
    return 0 if all(bar.met for bar in beside) else 1


if __name__ == "__main__":
    sys.exit(main())
