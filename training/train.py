"""Train the bundled model, tokenizer included: `python training/train.py --out DIR` (see README.md).

Runs through `PHASES` on one CPU thread for `--minutes`: phases and the learning rate follow the share of the time that
is gone. How many steps each phase took is written to `schedule.json`; `--schedule` takes as many steps again, whatever
the clock says. A checkpoint is written every `SAVE_SECONDS`, and the same command goes on from it. `--begin FOLDER`
takes the weights and the tokenizer of a finished run and has only the last phase, in which the rate rises and falls
once more. No position of the window or beyond is ever trained on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "src")]

from corpus import HELDOUT, training_documents  # noqa: E402
from documents import Draft  # noqa: E402
from evaluate_window import log_loss, tokens_per_character  # noqa: E402
from initial import begin  # noqa: E402
from llama import Llama, Shape, export, restore  # noqa: E402
from optimizer import Muon  # noqa: E402
from tasks import Sampler, wordings  # noqa: E402
from tokenizer import train_tokenizer  # noqa: E402

SAVE_SECONDS = 180
LOG_EVERY = 50
EVALUATE_EVERY = 400
LONGEST_STEP = 120.0  # seconds; the first compiled one takes about a minute
RATE, WARMUP, DECAY_FROM = 0.008, 0.01, 0.5
REPLACED = 0.1  # of the tokens that prose is read from: the text is short and comes by some twenty times
# The attention scores of a step are multiplied by a random factor from here to 1. Over 16 times the keys of a window
# the right one loses ln 16 = 2.8 of its lead; a model that is trained at full scale alone has no such lead to lose.
SOFTEST = 0.5


@dataclass(frozen=True)
class Phase:
    """Batches of `rows` rows of `length` tokens for a `share` of the run.

    `kinds` says how often each kind of row is drawn, `least` is the fewest tokens of a document in a row.
    """

    name: str
    share: float
    length: int
    rows: int
    least: int
    kinds: dict[str, float]


PHASES = [
    Phase("copy-64", 0.024, 64, 48, 40, {"copy": 2, "recall": 2, "json": 3, "facts": 3, "magic": 3, "prose": 3}),
    Phase(
        "tasks-128",
        0.146,
        128,
        24,
        40,
        {"recall": 1, "passkeys": 1, "magic": 4, "facts": 3, "json": 3, "variables": 3, "common": 2, "prose": 5},
    ),
    Phase(
        "tasks-256",
        0.14,
        256,
        12,
        80,
        {"passkeys": 1, "magic": 4, "facts": 2, "json": 3, "variables": 3, "common": 2, "prose": 5},
    ),
    Phase(
        "tasks-512",
        0.26,
        512,
        6,
        150,
        {"passkeys": 1, "magic": 4, "facts": 2, "json": 2, "variables": 2.5, "common": 2, "prose": 5},
    ),
    Phase(
        "tasks-512-again",
        0.43,
        512,
        6,
        150,
        {"passkeys": 7, "magic": 12, "facts": 4, "json": 1, "variables": 3, "common": 4, "prose": 3},
    ),
]
STARTS = [0.0, *accumulate(phase.share for phase in PHASES)]


def rate(progress: float, again: float) -> float:
    """Learning rate at a share of the run.

    A linear warm-up, flat, a linear decay to a fiftieth; and the same in the last phase, where `again` is the share of
    `RATE` that it rises to.
    """
    last = STARTS[-2]
    begin, end, highest = (0.0, last, RATE) if progress < last else (last, 1.0, again * RATE)
    share = (progress - begin) / (end - begin)
    if share < WARMUP:
        return highest * max(0.02, share / WARMUP)
    return highest * max(0.02, min(1.0, (1 - share) / (1 - DECAY_FROM)))


def losses(
    model: Llama, ids: Tensor, marks: Tensor, noise: torch.Generator, half: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean losses of the text targets and of the answer targets, and counts of right answers.

    The counts are (rows, 2): the answers of a row that are right in every token, and all its answers. `half` has
    matrices multiplied in bfloat16; weights and losses stay in float32.
    """
    replaced = (marks == Draft.TEXT) & (torch.rand(ids.shape, generator=noise) < REPLACED)
    read = torch.where(replaced, torch.randint(model.shape.vocabulary, ids.shape, generator=noise), ids)
    targets, marks = ids[:, 1:], marks[:, 1:]
    counted = marks != Draft.IGNORE
    scale = SOFTEST + (1 - SOFTEST) * float(torch.rand((), generator=noise))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = model.logits(model(read, scale)[:, :-1][counted]).float()
    each = F.cross_entropy(logits, targets[counted], reduction="none")
    text, answer = marks[counted] == Draft.TEXT, marks[counted] == Draft.ANSWER
    counts = torch.zeros(len(ids), 2, dtype=torch.long)
    # A run of answer tokens is an answer; its number is how many have begun so far, over all rows.
    asked = marks == Draft.ANSWER
    begins = asked & ~F.pad(asked, (1, 0))[:, :-1]
    number = begins.flatten().cumsum(0).view_as(asked)[asked] - 1
    wrong = torch.zeros(int(begins.sum()), dtype=torch.long)
    wrong.index_add_(0, number, (logits[answer].argmax(-1) != targets[counted][answer]).long())
    counts.index_add_(0, begins.nonzero()[:, 0], torch.stack([wrong == 0, wrong >= 0], 1).long())
    zero = each.new_zeros(())
    return each[text].mean() if text.any() else zero, each[answer].mean() if answer.any() else zero, counts


class Log:
    """Prints and appends to a file."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", encoding="utf-8")

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        print(line, file=self.file, flush=True)


class Clock:
    """Which share of the run is gone: by the time, or by the steps of a schedule.

    Attributes:
        seconds: of training so far, those before a stop included.
    """

    def __init__(self, minutes: float, schedule: dict[str, int] | None, seconds: float, begin: float = 0.0) -> None:
        self.total, self.schedule, self.begin = 60 * minutes, schedule, begin
        self.seconds, self.last = seconds, time.monotonic()

    def tick(self) -> None:
        """Count the step that has ended. While the process is paused (SIGSTOP) no time counts."""
        now = time.monotonic()
        self.seconds += min(now - self.last, LONGEST_STEP)
        self.last = now

    def progress(self, taken: dict[str, int]) -> float:
        """0 to 1; at 1 the run is over. `taken` is the number of steps of each phase so far."""
        if self.schedule is None:
            return min(1.0, self.begin + (1 - self.begin) * self.seconds / self.total)
        for phase, start in zip(PHASES, STARTS, strict=False):
            steps = self.schedule[phase.name] if start >= self.begin else 0
            if taken[phase.name] < steps:
                return start + phase.share * taken[phase.name] / steps
        return 1.0


def phase_at(progress: float) -> Phase:
    """The phase of a share of the run."""
    return PHASES[max(n for n in range(len(PHASES)) if STARTS[n] <= progress + 1e-9)]


class Run:
    """A run in a folder: model, optimizer, sampler, and how far they are."""

    def __init__(self, out: Path, args: argparse.Namespace) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.log, self.again, self.half = out, Log(out / "train.log"), args.again, args.bfloat16
        torch.manual_seed(args.seed)
        self.heldout = HELDOUT.read_text(encoding="utf-8")
        documents = training_documents(self.heldout)
        if not (out / "tokenizer.json").exists():
            before = PreTrainedTokenizerFast.from_pretrained(args.begin) if args.begin else None
            (before or train_tokenizer([*documents, *wordings()])).save_pretrained(out)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
        self.sampler = Sampler(self.tokenizer, documents, args.seed)
        self.model = Llama(Shape(len(self.tokenizer)), compiled=args.compile)
        if args.begin:
            restore(self.model, LlamaForCausalLM.from_pretrained(args.begin, dtype=torch.float32))
        else:
            begin(self.model)
        self.optimizer = Muon(self.model)
        self.taken: dict[str, int] = {phase.name: 0 for phase in PHASES}
        self.checkpoint = out / "checkpoint.pt"
        seconds = self.resume() if self.checkpoint.exists() else 0.0
        schedule = json.loads(args.schedule.read_text(encoding="utf-8")) if args.schedule else None
        self.clock = Clock(args.minutes, schedule, seconds, STARTS[-2] if args.begin else 0.0)
        size = sum(p.numel() for p in self.model.parameters())
        self.log(
            f"{f'resumed after {sum(self.taken.values())} steps' if seconds else 'start'}: seed {args.seed}, "
            f"{f'from the weights in {args.begin.name}, ' if args.begin else ''}"
            f"{f'schedule {schedule}' if schedule else f'{args.minutes:g} minutes'}, "
            f"Python {sys.version.split()[0]}, torch {torch.__version__}, transformers {transformers.__version__}, "
            f"{size:,} parameters, {len(self.sampler.material.stream):,} training tokens, phases {PHASES}"
        )

    def resume(self) -> float:
        """Go on from the checkpoint; how many seconds it took to get there."""
        saved = torch.load(self.checkpoint, weights_only=False)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load(saved["optimizer"])
        self.sampler.rng.setstate(saved["rng"])
        self.taken |= saved["taken"]
        return float(saved["seconds"])

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        half = self.checkpoint.with_suffix(".part")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state(),
                "rng": self.sampler.rng.getstate(),
                "taken": self.taken,
                "seconds": self.clock.seconds,
            },
            half,
        )
        os.replace(half, self.checkpoint)

    def train(self) -> None:
        """Until the end of the run."""
        sums, counts = torch.zeros(3), defaultdict(lambda: torch.zeros(2, dtype=torch.long))
        saved = self.clock.seconds
        while (progress := self.clock.progress(self.taken)) < 1.0:
            phase = phase_at(progress)
            kinds, ids, marks = self.sampler.batch(phase.kinds, phase.rows, phase.length, phase.least)
            assert ids.shape[1] <= self.model.shape.window
            # Out of the sampler's numbers, which a checkpoint has: a run that was stopped goes on as it would have.
            noise = torch.Generator().manual_seed(self.sampler.rng.getrandbits(63))
            text, answer, right = losses(self.model, ids, marks, noise, self.half)
            (text + answer).backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                self.optimizer.step(rate(progress, self.again))
            self.taken[phase.name] += 1
            self.clock.tick()
            sums += torch.stack([text.detach(), answer.detach(), torch.ones(())])
            for kind, row in zip(kinds, right, strict=True):
                counts[kind] += row
            step = sum(self.taken.values())
            if step % LOG_EVERY == 0:
                shares = ", ".join(f"{k} {c[0] / c[1]:.1%}" for k, c in sorted(counts.items()) if c[1])
                mean = (sums / sums[2]).tolist()
                self.log(
                    f"{step} {phase.name}: text {mean[0]:.3f}, answers {mean[1]:.3f} ({shares}), "
                    f"rate {rate(progress, self.again):.1e}, {progress:.1%}, {self.clock.seconds:.0f} s"
                )
                sums.zero_()
                counts.clear()
            if step % EVALUATE_EVERY == 0:
                loss = log_loss(export(self.model), self.tokenizer, self.heldout, length=phase.length, spans=20)
                loss *= tokens_per_character(self.tokenizer, self.heldout)
                self.log(f"{step} {phase.name}: held-out text {loss:.4f} nats per character, windows of {phase.length}")
            if self.clock.seconds - saved > SAVE_SECONDS:
                self.save()
                saved = self.clock.seconds
        self.save()
        export(self.model).save_pretrained(self.out)
        (self.out / "schedule.json").write_text(json.dumps(self.taken) + "\n", encoding="utf-8")
        self.log(f"finished after {sum(self.taken.values())} steps {self.taken}, {self.clock.seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=175.0)
    parser.add_argument("--begin", type=Path, help="a finished run, whose weights go through the last phase again")
    parser.add_argument("--again", type=float, default=0.6, help="of the first rate, the share of the last phase")
    parser.add_argument("--schedule", type=Path, help="steps of each phase, as schedule.json has them")
    parser.add_argument("--bfloat16", action="store_true", help="multiply matrices in bfloat16 (AVX-512 BF16 or AMX)")
    parser.add_argument("--compile", action="store_true", help="compile the layers (needs a C++ compiler)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if (args.out / "schedule.json").exists():
        print(f"the run in {args.out} is finished; give another --out to begin again")
        return
    Run(args.out, args).train()


if __name__ == "__main__":
    main()
