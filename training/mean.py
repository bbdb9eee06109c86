"""The mean of the weights of finished runs of one model: `python training/mean.py --out DIR RUN=SHARE RUN=SHARE ...`.

Runs that went on from one another lie close enough for it, and their mean does what each does about as well as the
better one (Wortsman et al., 2022, "Model soups"). The tokenizer is the first run's; all must have the same.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("runs", nargs="+", help="the folder of a run and its share, such as run10=0.3")
    args = parser.parse_args()
    pairs = [(Path(run), float(share)) for run, _, share in (text.rpartition("=") for text in args.runs)]
    if abs(sum(share for _, share in pairs) - 1) > 1e-6:
        parser.error("the shares do not sum to 1")
    first = pairs[0][0]
    for name in ("tokenizer.json", "config.json"):
        if any((run / name).read_bytes() != (first / name).read_bytes() for run, _ in pairs):
            parser.error(f"the runs differ in {name}")
    weights = [(load_file(run / "model.safetensors"), share) for run, share in pairs]
    mean = {name: sum(share * tensors[name] for tensors, share in weights) for name in weights[0][0]}
    args.out.mkdir(parents=True, exist_ok=True)
    save_file({name: x.contiguous() for name, x in mean.items()}, args.out / "model.safetensors", {"format": "pt"})
    for path in first.glob("*.json"):
        if path.name not in ("card.json", "schedule.json"):
            shutil.copyfile(path, args.out / path.name)


if __name__ == "__main__":
    main()
