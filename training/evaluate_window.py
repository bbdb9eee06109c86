"""How well the bundled model does inside its window: passkeys over noise and prose, and held-out perplexity.

python training/evaluate_window.py [--model DIR] [--count 200]
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from longspan.bundled import FOLDER, heldout_text  # noqa: E402
from longspan_eval.filler import FillerName  # noqa: E402
from longspan_eval.passkey import build, score  # noqa: E402

NEW_TOKENS = 8


@torch.no_grad()
def passkey_accuracy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    filler: FillerName,
    *,
    count: int,
    length: int,
    first_seed: int = 0,
    rows: int = 20,
) -> list[float]:
    """Scores, 0 or 1, of `count` prompts of exactly `length` tokens, read greedily `rows` at a time."""
    scores: list[float] = []
    for start in range(first_seed, first_seed + count, rows):
        seeds = range(start, min(start + rows, first_seed + count))
        examples = [build(tokenizer, length=length, seed=seed, filler=filler) for seed in seeds]
        ids = torch.tensor([example.input_ids for example in examples])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(out[:, length:], skip_special_tokens=True)
        scores += [score(text, example.references) for text, example in zip(texts, examples, strict=True)]
    return scores


@torch.no_grad()
def perplexity(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    text: str,
    *,
    length: int,
    spans: int | None = None,
) -> float:
    """Perplexity per token over windows of `length` tokens that start with `<s>` and share no other token.

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
    return math.exp(total / (len(starts) * (length - 1)))


def unigram_perplexity(tokenizer: PreTrainedTokenizerFast, text: str) -> float:
    """What the best model without any context could reach: the entropy of the text's own token counts."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    shares = [n / len(ids) for n in Counter(ids).values()]
    return math.exp(-sum(p * math.log(p) for p in shares))


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
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.model)
    window = model.config.max_position_embeddings
    length = window - NEW_TOKENS
    for filler in ("noise", "prose"):
        right = sum(passkey_accuracy(model, tokenizer, filler, count=args.count, length=length))
        low, high = interval(right, args.count)
        print(
            f"passkey over {filler}, prompts of {length} tokens: {right:.0f}/{args.count} = "
            f"{right / args.count:.1%} (95% interval {low:.1%} to {high:.1%})",
            flush=True,
        )
    text = heldout_text()
    print(
        f"held-out perplexity per token, windows of {window}: "
        f"{perplexity(model, tokenizer, text, length=window):.2f} (unigram of the same text: "
        f"{unigram_perplexity(tokenizer, text):.1f})"
    )


if __name__ == "__main__":
    main()
