"""Whether the kernels of this process are under the sanitizers: an entry that is read beyond its memory is found."""

from __future__ import annotations

import subprocess
import sys

import torch

from longspan.kernels import cpu
from longspan.kernels.topk.compiled import _TOPK


def beyond() -> None:
    """Choose of more scores than there are."""
    scores, chosen = torch.zeros(64), torch.zeros(8, dtype=torch.int64)
    told = {"n": 66, "count": 8, "first": 0, "tokens": 1, "prefer_last": 0, "near": 0, "tie": 0.0}
    cpu.run("topk", 1, _TOPK.pack(scores=scores.data_ptr(), stops=0, to=chosen.data_ptr(), **told))


def main() -> None:
    if sys.argv[1:] == ["beyond"]:
        beyond()
        return
    reason = cpu.unavailable_reason()
    if reason is not None:
        sys.exit(f"the kernels are not there: {reason}")
    done = subprocess.run([sys.executable, __file__, "beyond"], capture_output=True, text=True)
    if done.returncode == 0 or "heap-buffer-overflow" not in done.stderr:
        sys.exit(f"AddressSanitizer finds nothing in the kernels here (exit status {done.returncode})")
    print("AddressSanitizer watches the kernels: it finds a score that is read beyond its memory")


if __name__ == "__main__":
    main()
