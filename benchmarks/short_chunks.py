"""How long LongHeads takes to read in short chunks, beside chunks of a sixteenth of the window, ESA and DCA.

    python benchmarks/short_chunks.py             # writes results/short_chunks.json

One layer of SmolLM2-135M's shape on one thread, read in prefill chunks. The rows of a case take turns; a ratio is the
median over rounds of the CPU time over that of the first row in the same round.
"""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import longspan
from longspan.hf.argument import CACHE_ARGUMENT

OUT = Path(__file__).parent / "results" / "short_chunks.json"
PIECE, ROUNDS = 2048, 5
SHAPE = {"hidden_size": 576, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64, "rope_theta": 1e5}
HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3}
BOUNDS = "longheads:score=bounds"
CASES = {  # window and length: the first row is what the others are compared with
    (1024, 4096): (BOUNDS, f"{BOUNDS},chunk_length=16", f"{BOUNDS},chunk_length=8", "esa:share=group", "dca"),
    (8192, 16_384): (
        BOUNDS, f"{BOUNDS},chunk_length=16", f"{BOUNDS},chunk_length=16,num_chunks=128,local_chunks=8",
        "esa:share=group", "dca",
    ),
}  # fmt: skip


@torch.inference_mode()
def seconds(model: LlamaForCausalLM, method: str, ids: torch.Tensor) -> float:
    """CPU time of reading ``ids`` ``[1, N]``."""
    longspan.extend(model, method)
    cache, began = longspan.new_cache(model), time.process_time()
    for start in range(0, ids.shape[1], PIECE):
        piece = ids[:, start : start + PIECE]
        model(input_ids=piece, use_cache=True, logits_to_keep=1, **{CACHE_ARGUMENT: cache})
    return time.process_time() - began


def main() -> None:
    torch.manual_seed(0)
    found = []
    for (window, length), rows in CASES.items():
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS, max_position_embeddings=window)).eval()
        ids = torch.randint(0, SHAPE["vocab_size"], (1, length))
        for row in rows:  # kernels are built and memory is there
            seconds(model, row, ids)
        rounds = [[seconds(model, row, ids) for row in rows] for _ in range(ROUNDS)]
        for n, row in enumerate(rows):
            ratio = median(one[n] / one[0] for one in rounds)
            found.append({"window": window, "length": length, "row": row, "ratio": round(ratio, 3)})
            print(f"{window:>6,} {length:>7,}  {ratio:5.2f}  {row}", flush=True)
    about = {"processor": platform.processor() or platform.machine(), "torch": version("torch")}
    OUT.write_text(json.dumps({**about, "threads": 1, "rounds": ROUNDS, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
