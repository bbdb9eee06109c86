"""Train the bundled model, tokenizer included: `python training/train.py --out DIR` (see README.md).

Runs through `PHASES`, on one CPU core. A checkpoint is written every `SAVE_EVERY` steps, and the same command
goes on from it. No position of 512 or beyond is ever trained on.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "src")]

from corpus import HELDOUT, training_documents  # noqa: E402
from evaluate_window import passkey_accuracy, perplexity  # noqa: E402
from tasks import ANSWER, TEXT, Sampler  # noqa: E402
from tokenizer import train_tokenizer  # noqa: E402

WINDOW = 512
SAVE_EVERY = 50


@dataclass(frozen=True)
class Phase:
    """`steps` batches of `kinds` (rows of each); every `shorter`-th batch has a random length, from 120."""

    name: str
    steps: int
    length: int
    kinds: dict[str, int]
    lr: float
    warmup: int = 0
    decay: int = 0
    shorter: int = 0
    eval_every: int = 200


PHASES = [
    Phase("copy-64", 300, 64, {"copy": 20, "echo": 6, "prose": 6}, lr=3e-3, warmup=50),
    Phase(
        "keys-160", 350, 160, {"copy": 2, "echo": 2, "pairs": 4, "noise_key": 4, "prose_key": 6, "prose": 6}, lr=3e-3
    ),
    Phase("episodes-160", 350, 160, {"tile": 3, "episodes": 8, "noise_key": 4, "prose_key": 5, "prose": 4}, lr=3e-3),
    Phase(
        "keys-256",
        250,
        256,
        {"episodes": 2, "tile": 1, "pairs": 1, "noise_key": 2, "prose_key": 3, "prose_keys": 2, "prose": 5},
        lr=3e-3,
    ),
    Phase(
        "keys-512",
        650,
        512,
        {"pairs": 1, "noise_key": 2, "prose_key": 2, "noise_keys": 1, "prose_keys": 1, "prose": 5},
        lr=3e-3,
        shorter=4,
        eval_every=100,
    ),
    Phase(
        "final-512",
        1250,
        512,
        {"episodes": 1, "noise_key": 2, "prose_key": 3, "prose_keys": 1, "prose": 5},
        lr=3e-3,
        decay=950,
        shorter=4,
        eval_every=100,
    ),
]


def make_model(vocabulary: int) -> LlamaForCausalLM:
    """A Llama of 1.77 million parameters. The wide initialization is what lets it learn to copy early."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        initializer_range=0.06,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config)


def losses(model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Mean loss of the text targets, that of the answer targets, and the share of answer tokens got right."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    each = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
    marks = weights[:, 1:].flatten()
    text, answer = marks == TEXT, marks == ANSWER
    right = (logits[answer].argmax(-1) == ids[:, 1:].flatten()[answer]).float()
    zero = each.new_zeros(())
    return (
        each[text].mean() if text.any() else zero,
        each[answer].mean() if answer.any() else zero,
        right.mean() if answer.any() else zero,
    )


def rate(phase: Phase, step: int) -> float:
    """Learning rate: linear warm-up, flat, linear decay to a fiftieth over the last `decay` steps."""
    if step < phase.warmup:
        return phase.lr * (step + 1) / phase.warmup
    left = phase.steps - step
    return phase.lr * max(0.02, left / phase.decay) if left < phase.decay else phase.lr


class Log:
    """Prints and appends to a file."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", encoding="utf-8")

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        print(line, file=self.file, flush=True)


def report(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, length: int, heldout: str) -> str:
    """Twenty passkeys over each filler at this length, and the held-out perplexity of 20 spans of it."""
    model.eval()
    parts = []
    if length >= 100:
        for filler in ("noise", "prose"):
            right = passkey_accuracy(model, tokenizer, filler, count=20, length=length - 8)
            parts.append(f"{filler} {sum(right):.0f}/20")
    parts.append(f"held-out perplexity {perplexity(model, tokenizer, heldout, length=length, spans=20):.2f}")
    model.train()
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "train.log")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    heldout = HELDOUT.read_text(encoding="utf-8")
    documents = training_documents(heldout)
    if not (args.out / "tokenizer.json").exists():
        train_tokenizer(documents).save_pretrained(args.out)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.out)
    sampler = Sampler(tokenizer, documents, args.seed)
    model = make_model(len(tokenizer))
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    first, done, seconds = 0, 0, 0.0
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sampler.rng.setstate(saved["rng"])
        first, done, seconds = saved["phase"], saved["step"], saved["seconds"]
        if first == len(PHASES):
            print(f"the run in {args.out} is finished; give another --out to begin again")
            return
    log(
        f"{'resumed at ' + PHASES[first].name + f' step {done}' if seconds else 'start'}: seed {args.seed}, "
        f"Python {sys.version.split()[0]}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"{len(sampler.stream):,} training tokens"
    )
    begun = time.monotonic() - seconds
    model.train()
    for number in range(first, len(PHASES)):
        phase = PHASES[number]
        if done == 0:
            log(f"phase {phase}")
        sums = torch.zeros(3)
        for step in range(done, phase.steps):
            length, kinds = phase.length, phase.kinds
            if phase.shorter and step % phase.shorter == phase.shorter - 1:
                length = sampler.rng.randint(120, phase.length)
                kinds = {k: v * max(1, phase.length // length) for k, v in kinds.items() if "keys" not in k}
            ids, weights = sampler.batch(kinds, length)
            assert ids.shape[1] <= WINDOW
            text, answer, right = losses(model, ids, weights)
            (text + answer).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate(phase, step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            sums += torch.stack([text, answer, right]).detach()
            now = step + 1
            if now % 25 == 0:
                mean = (sums / 25).tolist()
                sums.zero_()
                log(
                    f"{phase.name} {now}/{phase.steps}: text {mean[0]:.3f}, answers {mean[1]:.3f} "
                    f"({mean[2]:.1%} right), lr {rate(phase, step):.1e}, {time.monotonic() - begun:.0f} s"
                )
            if now % SAVE_EVERY == 0 or now == phase.steps:
                last = now == phase.steps
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "rng": sampler.rng.getstate(),
                        "phase": number + last,
                        "step": 0 if last else now,
                        "seconds": time.monotonic() - begun,
                    },
                    checkpoint,
                )
            if now % phase.eval_every == 0 or now == phase.steps:
                log(f"{phase.name} {now}/{phase.steps}: {report(model, tokenizer, phase.length, heldout)}")
        done = 0
    model.save_pretrained(args.out)
    log(f"finished after {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
