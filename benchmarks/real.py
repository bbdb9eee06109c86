"""Real language models on real texts, by every method: what they find in them and how well they predict them.

    python benchmarks/real.py --texts NOVELS --model smollm2[=PATH]       # measure, most telling first
    python benchmarks/real.py --table-only                                # the tables from what has been measured

A *declared* window is smaller than the model's true one, so that the stock model sees all of the text and is the
ceiling. Ten facts are planted in a novel; one reading gives the loss of the last 2,048 tokens and, from copies of what
was read, the answer to each fact's question, asked in plain words and begun. NOVELS is a folder of .txt files; RULER's
essays may lie there or beside it.

Every sample is on disk (OUT/samples.jsonl) as soon as it is there: the run may be killed at any time, and the same
command goes on. At its end it moves samples to archives. It is as nice to other programs as can be, on one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch

from longspan.errors import LongspanError
from longspan.loading.models import load
from longspan_eval.session import Session
from planted import Texts
from real_report import write
from real_table import BLOCKS, key
from samples import Samples, read

OUT = Path(__file__).parent / "results" / "real"


def measure(name: str, where: str, novels: Path, journal: Samples, deadline: float) -> None:
    """Measure what is left of a model's blocks, in their order."""
    model, tokenizer = load(where, dtype="float32", device="cpu")
    session, texts = Session(model, tokenizer), Texts(novels, tokenizer)
    failed: set[tuple[object, ...]] = set()
    for reading in (reading for block in BLOCKS[name] for reading in block.readings(texts)):
        own, place = key(reading, name), (reading.kind, reading.window, reading.length, reading.spec)
        if own in journal.samples or place in failed:
            continue
        if time.time() > deadline:
            return
        sample = session.measure(reading)
        if sample.error is not None:
            failed.add(place)
        journal.append(own, sample)
        said = sample.error or f"{sample.correct:.0%}, loss {sample.loss:.4f}, {sample.seconds:.0f} s"
        print(time.strftime("%H:%M:%S"), own, said, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", help=f"{' or '.join(BLOCKS)}, with =PATH of its folder or GGUF file unless it was fetched"
    )
    parser.add_argument("--texts", type=Path, help="folder of novels, each a .txt file")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--table-only", action="store_true", help="only write the tables")
    parser.add_argument(
        "--matmul",
        choices=("highest", "medium"),
        default="highest",
        help="PyTorch's precision of products; without AMX medium is fp32 too, by a library that may be faster",
    )
    args = parser.parse_args()
    if not args.table_only and (args.texts is None or (args.model or "").partition("=")[0] not in BLOCKS):
        parser.error("give --texts and --model NAME[=PATH], or --table-only")
    return args


def main() -> int:
    args = parse()
    try:
        if not args.table_only:
            os.nice(19)
            torch.set_num_threads(1)
            torch.set_float32_matmul_precision(args.matmul)
            name, _, where = args.model.partition("=")
            with Samples(args.out) as journal:
                measure(name, where or name, args.texts, journal, time.time() + 60 * args.minutes)
                journal.pack()
        write(read(args.out), args.out)
    except LongspanError as error:
        print(f"real: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
