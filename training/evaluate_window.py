"""How well a model does inside its window: every task that it is meant for, and held-out perplexity.

python training/evaluate_window.py [--model DIR] [--count 200] [--tasks facts,passkey] [--card FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "src")]

from longspan.bundled import FOLDER, heldout_text  # noqa: E402
from longspan_eval.figure import wilson  # noqa: E402
from longspan_eval.sample import versions  # noqa: E402
from longspan_eval.task import Task  # noqa: E402
from window_tasks import WINDOW_TASKS  # noqa: E402

ROWS = 20


@torch.no_grad()
def scores(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    *,
    count: int,
    length: int,
    first_seed: int = 0,
) -> list[float]:
    """Scores, 0 to 1, of `count` prompts that take `length` tokens with their answers, read greedily."""
    found: list[float] = []
    for start in range(first_seed, first_seed + count, ROWS):
        seeds = range(start, min(start + ROWS, first_seed + count))
        examples = [task.build(tokenizer, length=length, seed=seed) for seed in seeds]
        ids = torch.tensor([example.input_ids for example in examples])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=task.new_tokens,
            min_new_tokens=task.new_tokens,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
        found += [task.score(text, example.references) for text, example in zip(texts, examples, strict=True)]
    return found


@torch.no_grad()
def log_loss(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, text: str, *, length: int, spans: int | None = None
) -> float:
    """Mean loss per token, in nats, over windows of `length` tokens that start with `<s>` and share no other token.

    `spans` picks that many windows, evenly spread over the text; None takes them all.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    starts = list(range(0, len(ids) - length + 2, length - 1))
    if spans is not None:
        starts = [starts[round(i * (len(starts) - 1) / max(1, spans - 1))] for i in range(spans)]
    total = 0.0
    for i in range(0, len(starts), 8):
        rows = [[tokenizer.bos_token_id, *ids[s : s + length - 1]] for s in starts[i : i + 8]]
        batch = torch.tensor(rows)
        logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
        total += F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten(), reduction="sum").item()
    return total / (len(starts) * (length - 1))


def tokens_per_character(tokenizer: PreTrainedTokenizerFast, text: str) -> float:
    """How many tokens a character takes, so that tokenizers can be compared."""
    return len(tokenizer(text, add_special_tokens=False)["input_ids"]) / len(text)


def unigram_loss(tokenizer: PreTrainedTokenizerFast, text: str) -> float:
    """What the best model without any context could reach: the entropy of the text's own token counts, in nats."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    shares = [n / len(ids) for n in Counter(ids).values()]
    return -sum(p * math.log(p) for p in shares)


def measure(folder: Path, names: Sequence[str], count: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The figures of a model in its window, as `longspan.bundled.card` describes them; each is printed as it comes."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    window = model.config.max_position_embeddings
    tasks: dict[str, Any] = {}
    for name in names:
        task = WINDOW_TASKS[name]
        try:
            found = scores(model, tokenizer, task, count=count, length=window)
        except ValueError as error:  # too short a window for this tokenizer
            print(f"| {name} | {task.summary} | not measured: {error} |", flush=True)
            continue
        low, high = wilson(sum(found), count)
        tasks[name] = {
            "score": round(sum(found) / count, 4),
            "interval": [round(low, 4), round(high, 4)],
            "whole": sum(one == 1.0 for one in found),
        }
        print(row(name, tasks[name], count), flush=True)
    text = heldout_text()
    loss, density = log_loss(model, tokenizer, text, length=window), tokens_per_character(tokenizer, text)
    return {
        "sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "parameters": model.num_parameters(),
        "window": window,
        "prompts": count,
        "tasks": tasks,
        "perplexity": round(math.exp(loss), 2),
        "nats_per_character": round(loss * density, 4),
        "unigram_perplexity": round(math.exp(unigram_loss(tokenizer, text)), 1),
        "versions": {"python": platform.python_version(), **versions()},
    }


def row(name: str, figure: dict[str, Any], count: int) -> str:
    """A task's line in a table: what it asks, the mean score with its interval, and how many are right whole."""
    low, high = figure["interval"]
    return (
        f"| `{name}` | {WINDOW_TASKS[name].summary} | {figure['score']:.1%} ({low:.1%} to {high:.1%}) | "
        f"{figure['whole']} of {count} |"
    )


def table(card: dict[str, Any]) -> list[str]:
    """The lines of a card's tables."""
    lines = ["| task | what it asks | score (95% interval) | right as a whole |", "|---|---|---|---|"]
    lines += [row(name, figure, card["prompts"]) for name, figure in card["tasks"].items()]
    lines.append("")
    lines.append(
        f"Held-out text, windows of {card['window']}: perplexity {card['perplexity']:.2f} per token, "
        f"{card['nats_per_character']:.4f} nats per character (unigrams of the same text: perplexity "
        f"{card['unigram_perplexity']:.1f})."
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--tasks", default=",".join(WINDOW_TASKS), help="names, comma between them")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--card", type=Path, help="write the figures to this file, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    card = measure(args.model, args.tasks.split(","), args.count, getattr(torch, args.dtype))
    print(table(card)[-1])
    if args.card is not None:
        args.card.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
