"""Put a finished run into the package: weights, tokenizer, figures in the window, calibration, and the card's tables.

    python training/ship.py --run DIR [--count 200]

The figures are measured first and kept in DIR/card.json: with those of the same weights there, they are not measured
again. What depends on the weights beside these files is listed in training/README.md ("Shipping a run").
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "training"), str(ROOT / "benchmarks"), str(ROOT / "src")]

from common import between  # noqa: E402
from evaluate_window import measure, table  # noqa: E402
from longspan.bundled import FOLDER  # noqa: E402
from window_tasks import CARD_TASKS  # noqa: E402

FILES = ("model.safetensors", "tokenizer.json", "config.json")
FIGURES = "<!-- figures -->", "<!-- /figures -->"
SIZES = "<!-- sizes -->", "<!-- /sizes -->"


def figures(run: Path, count: int) -> dict[str, Any]:
    """The run's card, measured unless DIR/card.json has that of these weights and at least as many prompts."""
    path = run / "card.json"
    if path.exists():
        card: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        weights = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
        if card["sha256"] == weights and card["prompts"] >= count and card["tasks"].keys() >= set(CARD_TASKS):
            return card | {"tasks": {name: card["tasks"][name] for name in CARD_TASKS}}
    card = measure(run, CARD_TASKS, count)
    path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return card


def sizes(folder: Path, card: dict[str, Any]) -> list[str]:
    """The lines of the table of sizes."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    megabytes = (folder / "model.safetensors").stat().st_size / 1e6
    return [
        "| | |",
        "|---|---|",
        f"| parameters | {card['parameters']:,} |",
        f"| architecture | `LlamaForCausalLM`: {config['num_hidden_layers']} layers, width {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads of {config['head_dim']} with {config['num_key_value_heads']} key-value "
        f"heads, SwiGLU of {config['intermediate_size']}, tied embeddings |",
        f"| positions | RoPE, base 10,000; training never used a position of {card['window']} or more |",
        f"| tokenizer | byte-level BPE, {config['vocab_size']:,} tokens, one token per digit; starts with `<s>` |",
        f"| weights | float32 safetensors, {megabytes:.1f} MB |",
        "| licence | Apache-2.0 (weights and tokenizer); for `heldout.txt` see below |",
    ]


def write_tables(folder: Path, card: dict[str, Any]) -> None:
    """The tables of the card's README, between their marks."""
    readme = folder / "README.md"
    text = between(readme.read_text(encoding="utf-8"), SIZES, sizes(folder, card))
    readme.write_text(between(text, FIGURES, table(card)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="the folder that train.py wrote")
    parser.add_argument("--count", type=int, default=200, help="prompts of each task")
    args = parser.parse_args()
    missing = [name for name in FILES if not (args.run / name).exists()]
    if missing:
        parser.error(f"{args.run} has no {missing[0]}: the run is not finished; run training/train.py again to go on")
    card = figures(args.run, args.count)
    for name in FILES:
        shutil.copyfile(args.run / name, FOLDER / name)
    (FOLDER / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    write_tables(FOLDER, card)
    # In a process of its own, which has not read the weights of before.
    subprocess.run([sys.executable, str(ROOT / "training" / "calibrate.py")], check=True)
    print(f"{FOLDER} has the weights {card['sha256'][:12]}; what else follows them: training/README.md")


if __name__ == "__main__":
    main()
