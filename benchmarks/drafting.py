"""Drafted decoding beside plain decoding: seconds of a token, what was drafted and accepted, and whether tokens differ.

    python benchmarks/drafting.py --texts NOVELS --lengths 4096 16384
    python benchmarks/drafting.py                        # what has been measured

A model reads so many tokens of NOVELS, a folder of .txt files. Then it answers: "quote" begins a passage of the text
again, which the model goes on with, and "free" asks a question. Each answer is written plainly and with drafts in turn,
from the same keys and values, by the same attachment. The seconds of an answer are those of the process on the CPU
from its first token to its last, since other processes may run beside it; with one thread they are its time on a
machine of its own. A ratio is that of the sums over a task's answers. Results are on disk after each text, and the same
command goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import longspan
from common import cpu_model
from longspan.files import write
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.attach import attached_to
from longspan.hf.drafted import shadow_drafted, unshadow_drafted
from longspan.hf.drafting import Drafting
from longspan.loading.models import load_model, load_tokenizer

MARKS = "<!-- drafting -->", "<!-- /drafting -->"
RESULTS = Path(__file__).parent / "results" / "drafting.json"
QUESTIONS = (
    "Who is the hero of the story?", "Where do most of these people live?", "How does the story begin?",
    "What does the family think of the visitor?",
)  # fmt: skip
BEGUN, CHUNK = 128, 1024  # tokens of a passage that are given, and of a prefill chunk
TASKS = {"quote": "answers that quote", "free": "free answers"}


class Times:
    """A streamer that notes when each token came."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: Tensor) -> None:
        self.at.append(time.process_time())

    def end(self) -> None:
        """Nothing is left."""


def prompts(tokenizer: Any, text: Tensor, answers: int) -> list[tuple[str, Tensor]]:
    """Tasks and the tokens that follow the text ``[T]``."""
    found = []
    for n in range(answers):
        passage = len(text) * (2 * n + 1) // (2 * answers)
        again = tokenizer("\n\nThe same passage once more:\n", return_tensors="pt", add_special_tokens=False).input_ids[
            0
        ]
        found.append(("quote", torch.cat((again, text[passage : passage + BEGUN]))))
        asked = f"\n\n{QUESTIONS[n % len(QUESTIONS)]}\nAnswer:"
        found.append(("free", tokenizer(asked, return_tensors="pt", add_special_tokens=False).input_ids[0]))
    return found


def measure(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Measure what is missing."""
    torch.set_num_threads(args.threads)
    model = load_model(args.model, weights=args.weights, dtype=args.dtype)
    tokenizer = load_tokenizer(args.model, model)
    novels = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(args.texts.glob("*.txt")))
    ids = tokenizer(novels[: 8 * max(args.lengths)], return_tensors="pt", add_special_tokens=False).input_ids[0]
    longspan.extend(model, args.method)
    attachment, drafting = attached_to(model), Drafting(args.draft)
    cache, model.generation_config.eos_token_id = longspan.new_cache(model), None
    for length in sorted(args.lengths):
        key = "|".join(map(str, (args.model, args.weights, args.dtype, args.method, args.draft, args.threads, length)))
        with torch.inference_mode():
            for start in range(cache.get_seq_length(), length, CHUNK):
                model(
                    input_ids=ids[None, start : min(start + CHUNK, length)], logits_to_keep=1, **{CACHE_ARGUMENT: cache}
                )
        if key in found:
            continue
        own: list[dict[str, Any]] = []
        for task, rest in prompts(tokenizer, ids[:length], args.answers):
            said, prompt = {}, torch.cat((ids[:length], rest))[None]
            for way in ("plain", "drafted", "plain again"):
                if way == "drafted":
                    shadow_drafted(model, attachment, drafting)
                times = Times()
                out = model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=args.tokens, do_sample=False,
                    pad_token_id=0, streamer=times, **{CACHE_ARGUMENT: cache},
                )  # fmt: skip
                unshadow_drafted(model)
                cache.crop(length)
                said[way] = out[0, prompt.shape[1] :].tolist(), times.at[-1] - times.at[1]
            drafts = attachment.thread.drafts
            assert drafts is not None
            seconds = {way: took for way, (_, took) in said.items()}
            own.append(
                {
                    "task": task, "plain": (seconds["plain"] + seconds["plain again"]) / 2,
                    "first": seconds["plain"], "again": seconds["plain again"],
                    "drafted_seconds": seconds["drafted"], **vars(drafts),
                    "tokens": args.tokens - 1, "equal": said["plain"][0] == said["drafted"][0],
                    "plain_equal": said["plain"][0] == said["plain again"][0],
                }
            )  # fmt: skip
            print(time.strftime("%H:%M:%S"), key, own[-1], flush=True)
        found[key] = {"answers": own, "cpu": cpu_model(), "date": time.strftime("%Y-%m-%d")}
        lines = (f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in sorted(found))
        write(RESULTS, "{\n" + ",\n".join(lines) + "\n}\n")


def table(found: dict[str, Any]) -> list[str]:
    """Ratios, drafts and equal answers of each text and task."""
    lines = [
        "",
        "| model, weights | method | tokens | | CPU seconds a token, plain | with drafts | ratio | tokens a forward |",
    ]
    lines[-1] += " drafted | accepted | equal |"
    lines += ["| --- | --- | ---: | --- |" + " ---: |" * 7]
    for key in sorted(found, key=lambda key: (key.rpartition("|")[0], int(key.rpartition("|")[2]))):
        model, weights, dtype, method, _, threads, length = key.split("|")
        for task, words in TASKS.items():
            own = [one for one in found[key]["answers"] if one["task"] == task]
            tokens, plain, drafted = (sum(one[name] for one in own) for name in ("tokens", "plain", "drafted_seconds"))
            tried, accepted = (sum(one[name] for one in own) for name in ("drafted", "accepted"))
            equal = f"{sum(one['equal'] for one in own)} of {len(own)}"
            form = f"{model}, {weights} {dtype}, {threads} thread{'s' if int(threads) > 1 else ''}"
            lines.append(
                f"| {form} | `{method}` | {int(length):,} | {words} | {plain / tokens:.3f} | {drafted / tokens:.3f} | "
                f"{drafted / plain:.2f} | {tokens / (tokens - accepted):.1f} | {tried:,} | {accepted:,} | {equal} |"
            )
    return [*lines, ""]


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="folder of novels, each a .txt file; without it nothing is measured")
    parser.add_argument("--model", default="smollm2", help="a name that `longspan fetch` knows, or a GGUF file")
    parser.add_argument("--weights", default="auto", help="as of longspan.load")
    parser.add_argument("--dtype", default="auto", help="as of longspan.load")
    parser.add_argument("--method", default="dca")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--lengths", nargs="+", type=int, default=(4096, 16_384), help="in tokens")
    parser.add_argument("--answers", type=int, default=4, help="of each task and length")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    found = results()
    if args.texts is not None:
        measure(args, found)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
