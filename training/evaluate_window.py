"""How well a model does inside its window: every task that it is meant for, and held-out perplexity.

python training/evaluate_window.py [--model DIR] [--count 200] [--tasks facts,passkey-noise]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "src")]

from longspan.bundled import FOLDER, heldout_text  # noqa: E402
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
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    text: str,
    *,
    length: int,
    spans: int | None = None,
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


def interval(right: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    share = right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--tasks", default=",".join(WINDOW_TASKS), help="names, comma between them")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.model)
    window = model.config.max_position_embeddings
    for name in args.tasks.split(","):
        task = WINDOW_TASKS[name]
        try:
            found = scores(model, tokenizer, task, count=args.count, length=window)
        except ValueError as error:  # too short a window for this tokenizer
            print(f"| {name} | {task.summary} | not measured: {error} |", flush=True)
            continue
        low, high = interval(sum(found), len(found))
        print(
            f"| {name} | {task.summary} | {sum(found) / len(found):.1%} ({low:.1%} to {high:.1%}) | "
            f"{sum(one == 1.0 for one in found)} of {len(found)} whole |",
            flush=True,
        )
    text = heldout_text()
    loss, density = log_loss(model, tokenizer, text, length=window), tokens_per_character(tokenizer, text)
    unigram = unigram_loss(tokenizer, text)
    print(
        f"held-out text, windows of {window}: perplexity {math.exp(loss):.2f} per token, {loss * density:.4f} nats and "
        f"{loss * density / math.log(2):.4f} bits per character (unigrams of the same text: {math.exp(unigram):.1f} "
        f"per token, {unigram * density:.4f} nats per character)"
    )


if __name__ == "__main__":
    main()
