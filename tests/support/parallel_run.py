"""Models split over two processes: what each of them answers, for a test that has the whole model to compare.

``answers`` starts torchrun once; ``main`` is what each process runs.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import longspan
from longspan.bundled import FOLDER, heldout_text, load_bundled
from longspan.methods import METHODS, Method
from longspan.terms import ChunkScore, Share

PROCESSES = 2
WINDOW = 128  # of the bundled model's 512 tokens, so that short prompts are several windows
LENGTH, PADDED, NEW, LAST = 430, 41, 6, 24
CALIBRATION = FOLDER / "calibration.safetensors"
SHARES: tuple[Share, ...] = ("head", "group", "layer")
SCORES: tuple[ChunkScore, ...] = ("representation", "mean", "submeans", "bounds", "token_max")

# Name → what ``longspan.extend`` is given besides the window.
CASES: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in METHODS},
    "lm-infinite with middle tokens": {"method": longspan.LMInfinite(middle_top_k=5, from_layer=0)},
    "esa, calibrated": {"method": "esa", "calibration": CALIBRATION},
    "esa by group": {"method": longspan.ESA(share="group")},
    "esa in slots": {"method": longspan.ESA(remap="slots", score_at=7)},
    "esa in files": {"method": "esa", "kv_tier": "disk"},
    **{f"longheads by layer, {score}": {"method": longspan.LongHeads(share="layer", score=score)} for score in SCORES},
    **{
        f"longheads by {share}, calibrated": {
            "method": longspan.LongHeads(share=share, score="token_max"),
            "calibration": CALIBRATION,
        }
        for share in SHARES
    },
    "auto": {"method": "auto"},
}
# Families whose attention is split in other ways, and what is asked of each.
FAMILIES = ("llama-mha", "gpt_neox", "phi3", "qwen3", "gemma2", "olmo2", "mixtral")
OF_A_FAMILY: dict[str, str | Method] = {"dca": "dca", "esa": "esa", "infllm": "infllm"}


def prompt() -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of text, the first left-padded, and their attention mask."""
    _, tokenizer = load_bundled()
    ids = tokenizer.encode(heldout_text()[:9000])
    rows = torch.tensor([ids[:LENGTH], ids[LENGTH : 2 * LENGTH]])
    mask = torch.ones_like(rows)
    mask[0, :PADDED] = 0
    return rows.masked_fill(mask == 0, tokenizer.pad_token_id), mask


def of_case(model: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Tokens and logits of a model under one of ``CASES``."""
    ids, mask = prompt()
    longspan.extend(model, window=WINDOW, length=LENGTH + NEW, **case)
    generated = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    cache = longspan.new_cache(model)
    with torch.no_grad():
        first = model(ids[1:, :-LAST], past_key_values=cache, logits_to_keep=1).logits
        rest = model(ids[1:, -LAST:], past_key_values=copy.deepcopy(cache)).logits
        alone = model(ids[1:, -LAST : 1 - LAST], past_key_values=cache).logits
    longspan.restore(model)
    return {"tokens": generated[:, LENGTH:].tolist(), "logits": torch.cat((first, rest, alone), dim=1)}


def of_family(model: Any, method: str | Method) -> torch.Tensor:
    """Logits of a tiny model: four windows at once, and a token after them."""
    ids = torch.randint(4, 124, (1, 257), generator=torch.Generator().manual_seed(0))
    longspan.extend(model, method)
    cache = longspan.new_cache(model)
    with torch.no_grad():
        outs = [model(x, past_key_values=cache).logits for x in (ids[:, :-1], ids[:, -1:])]
    longspan.restore(model)
    return torch.cat(outs, dim=1)


def answers(folder: Path, timeout: float = 1200) -> list[dict[str, Any]]:
    """What each process found, by its rank.

    Args:
        folder: has a folder for each of ``FAMILIES`` and ``"one-key-head"`` with a model; the answers go there too.
        timeout: seconds after which all processes are killed.

    Raises:
        AssertionError: a process failed or took too long; with the end of what was printed.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen([*command, __file__, str(folder)], env=environment, stdout=log, stderr=log)
        try:
            code: int | str = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = f"nothing after {timeout} s"
        finally:
            _stop(process)
        log.seek(0)
        assert code == 0, f"torchrun: {code}\n{log.read()[-5000:]}"
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


def _stop(process: subprocess.Popen[Any]) -> None:
    """End torchrun, which ends its workers first; they are in sessions of their own."""
    if process.poll() is not None:
        return
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = [int(pid) for pid in children.read_text().split()] if children.is_file() else []
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def main(folder: Path) -> None:
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    torch.set_num_threads(1)

    def split(path: Path, **how: Any) -> Any:
        how = how or {"tp_size": PROCESSES, "tp_plan": "auto"}
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, distributed_config=DistributedConfig(**how)
        ).eval()

    model = split(FOLDER)
    found: dict[str, Any] = {"cases": {name: of_case(model, case) for name, case in CASES.items()}}
    report = longspan.extend(model, "esa", calibration=CALIBRATION)
    found["report"] = {"ranks": list(report.ranks or ()), "text": str(report), "bytes": report.kv_bytes_per_token}
    found["report"]["heads_hold"] = report.heads_hold
    found["refused"] = refusals(model)
    longspan.restore(model)
    found["families"] = {}
    for name in FAMILIES:
        model = split(folder / name)
        found["families"][name] = {kind: of_family(model, method) for kind, method in OF_A_FAMILY.items()}
    found["refused"]["one key head"] = refused(longspan.extend, split(folder / "one-key-head"))
    found["refused"]["pipeline"] = refused(longspan.extend, split(folder / "llama-mha", pp_size=PROCESSES))
    torch.save(found, folder / f"rank-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


def refusals(model: Any) -> dict[str, str]:
    """What an extended, split model is refused, by name."""
    _, tokenizer = load_bundled()

    def record() -> None:
        with longspan.record(model):
            pass

    def graphed() -> None:
        with longspan.extended(model, "dca"), longspan.graphed(model):  # esa is refused for another reason
            pass

    texts = [torch.arange(3, 103)]
    return {
        "read": refused(longspan.read, model, tokenizer, "A text."),
        "record": refused(record),
        "calibrate": refused(longspan.calibrate, model, texts),
        "diagnose": refused(longspan.diagnose, model),
        "graphed": refused(graphed),
    }


def refused(call: Any, *args: Any) -> str:
    """The message of the error that a call raises; empty if it raises none."""
    try:
        call(*args)
    except longspan.LongspanError as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
