"""Make the bundled model's calibration: prose of the training text and pass keys hidden in it, half and half.

    python training/calibrate.py              # writes src/longspan/bundled/calibration.safetensors, in seconds
    python training/calibrate.py --report     # and how well it, sgd and pca find the top keys of held-out text

Run it again whenever the weights change: the file says which it was made for and is refused by any others. The maps
follow the texts they are made from. From prose alone they are a little better on prose, and lose the tokens of a pass
key in the layers that retrieve it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from corpus import training_documents
from longspan.bundled import FOLDER, heldout_text, load_bundled
from longspan.calibration import SOLVERS
from longspan.hf import calibrate_each, measure_recall
from longspan.hf.calibration.collect import token_ids
from longspan_eval.filler import NOISE
from longspan_eval.tasks.passkey import NEEDLE, QUESTION, TASK

STRETCHES = 4  # of held-out text, for the report
LENGTH = 16_384


def texts(tokenizer, documents: list[str], window: int, seed: int = 0) -> Iterator[Tensor]:
    """Without end, in turns and each ``[window]``: prose, a pass key in prose, prose, a pass key in noise."""
    rng = random.Random(seed)
    stream = torch.cat([token_ids(tokenizer, document + "\n\n") for document in documents])
    noise = token_ids(tokenizer, NOISE).repeat(window)
    head, question = (token_ids(tokenizer, text) for text in (TASK, QUESTION))
    bos = torch.tensor([tokenizer.bos_token_id])

    def passage(source: Tensor, count: int) -> Tensor:
        first = rng.randrange(source.numel() - count)
        return source[first : first + count]

    while True:
        for filler in (stream, noise):
            yield torch.cat((bos, passage(stream, window - 1)))
            key = str(rng.randint(10000, 99999))
            needle, answer = token_ids(tokenizer, NEEDLE.format(key=key)), token_ids(tokenizer, f" {key}.")
            room = window - sum(part.numel() for part in (bos, head, needle, question, answer))
            body, cut = passage(filler, room), rng.randrange(room)
            yield torch.cat((bos, head, body[:cut], needle, body[cut:], question, answer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER / "calibration.safetensors")
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--reduced", type=int)
    parser.add_argument("--reduced-per-head", type=int)
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    model, tokenizer = load_bundled()
    source = texts(tokenizer, training_documents(heldout_text()), model.config.max_position_embeddings)
    made = calibrate_each(
        model, source, solvers=SOLVERS if args.report else ("closed_form",), tokens=args.tokens,
        reduced=args.reduced, reduced_per_head=args.reduced_per_head, model_id="bundled",
    )  # fmt: skip
    made["closed_form"].save(args.out)
    print(f"{args.out}: {made['closed_form'].settings()}")
    if args.report:
        heldout = token_ids(tokenizer, heldout_text())
        starts = range(0, heldout.numel() - LENGTH, (heldout.numel() - LENGTH) // STRETCHES)
        stretches = [heldout[start : start + LENGTH] for start in starts[:STRETCHES]]
        print(measure_recall(model, list(made.values()), stretches, top=256))


if __name__ == "__main__":
    main()
