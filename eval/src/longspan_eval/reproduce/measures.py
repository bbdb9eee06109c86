"""The kinds of things that tables measure, each with all that its sample depends on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from longspan.store import Tier
from longspan_eval import passkey
from longspan_eval.analysis.study import Prompt, look
from longspan_eval.generate import decode, prefill
from longspan_eval.plan import Ask, digest
from longspan_eval.reproduce.lab import Lab
from longspan_eval.reproduce.memory import Peak
from longspan_eval.reproduce.texts import Text
from longspan_eval.results import Sample
from longspan_eval.rows import Row
from longspan_eval.runner import run_example
from longspan_eval.task import Record, Task

TIMED_TOKENS = 16  # of the answer whose seconds a token are taken


@dataclass(frozen=True)
class Asked:
    """A prompt of a task, read by a row; ``correct`` is its score."""

    row: Row
    task: Task = field(compare=False, repr=False)
    length: int
    seed: int
    depth: float | None = None
    record: Record | None = field(default=None, compare=False, repr=False)

    @property
    def ask(self) -> Ask:
        """As ``longspan eval`` has it, for what its time is guessed from."""
        return Ask(self.row, self.task, self.length, self.seed, self.depth, "")

    def what(self, lab: Lab) -> dict[str, Any]:
        return {
            **lab.parameters(self.row, self.length),
            "task": self.task.name,
            "version": self.task.version,
            "new_tokens": self.task.new_tokens,
            "length": self.length,
            "seed": self.seed,
            "depth": self.depth,
            "record": None if self.record is None else digest(self.record),
        }

    def run(self, lab: Lab) -> Sample:
        example = self.task.build(
            lab.tokenizer, length=self.length, seed=self.seed, depth=self.depth, record=self.record
        )
        lab.attach(self.row, self.length)
        return run_example(lab.model, lab.tokenizer, self.row.label, self.length, example, self.task)


@dataclass(frozen=True)
class Cut(Asked):
    """A prompt of a made task, and whether the border between two chunks cuts its answer; for rows without chunks.

    Attributes:
        chunk: tokens of a chunk.
    """

    chunk: int = 1

    def what(self, lab: Lab) -> dict[str, Any]:
        return {**super().what(lab), "chunk": self.chunk}

    def run(self, lab: Lab) -> Sample:
        prompt = Prompt.of_task(self.task, lab.tokenizer, length=self.length, seed=self.seed)
        split = any(first // self.chunk != (stop - 1) // self.chunk for first, stop in prompt.answers)
        return replace(super().run(lab), figures={"split": float(split)})


@dataclass(frozen=True)
class Looked:
    """What a row chooses where the answer begins: cover rate, Gini coefficient, hit rates; and the answer's score.

    Attributes:
        prompt: of a made ``task``, by its seed; or the first ``length`` tokens of a ``text``.
        window: the window in tokens, where it is not the model's.
    """

    row: Row
    length: int
    seed: int = 0
    task: Task | None = field(default=None, compare=False, repr=False)
    text: Text | None = field(default=None, compare=False, repr=False)
    window: int | None = None

    def what(self, lab: Lab) -> dict[str, Any]:
        window = self.window or lab.subject.window
        return {
            **lab.parameters(self.row, self.length, window),
            "attention_window": window,
            "length": self.length,
            "seed": self.seed,
            "task": None if self.task is None else [self.task.name, self.task.version],
            "text": None if self.text is None else self.text.sha256,
            "measure": 2,
        }

    def run(self, lab: Lab) -> Sample:
        if self.task is not None:
            prompt = Prompt.of_task(self.task, lab.tokenizer, length=self.length, seed=self.seed)
        else:
            assert self.text is not None
            prompt = Prompt(list(self.text.ids[: self.length]))
        lab.attach(self.row, self.length, window=self.window)
        seen = look(lab.model, lab.tokenizer, prompt)
        split = math.nan if seen.split is None else float(seen.split)
        return Sample(
            self.row.label,
            self.length,
            self.seed,
            None,
            "",
            prediction=seen.prediction,
            correct=0.0 if math.isnan(seen.score) else seen.score,
            tokens=len(prompt.ids),
            figures={
                "cover": seen.cover,
                "gini": seen.gini,
                "hit1": seen.hit1,
                "hit5": seen.hit5,
                "chunks": float(len(seen.chunks)),
                "split": split,
            },
        )


@dataclass(frozen=True)
class Timed:
    """A passkey prompt, read and answered by the clock: seconds of the prefill, seconds a token, peak memory.

    Attributes:
        seed: of the prompt; each round has its own.
        answers: tokens of an answer are read too; else the prefill alone.
        implementation: transformers' attention, for the stock row.
        kv_tier: where keys and values lie.
    """

    row: Row
    length: int
    seed: int
    answers: bool = True
    implementation: str | None = None
    kv_tier: Tier = "device"

    @property
    def told(self) -> str:
        """What tells its samples from those of other rows."""
        return f"timed {self.row.name} {self.implementation or self.kv_tier}"

    def what(self, lab: Lab) -> dict[str, Any]:
        return {
            **lab.parameters(self.row, self.length),
            "length": self.length,
            "seed": self.seed,
            "answers": self.answers,
            "implementation": self.implementation,
            "kv_tier": self.kv_tier,
            "threads": torch.get_num_threads(),
            "measure": 2,
            "version": passkey.VERSION,
        }

    @torch.inference_mode()
    def run(self, lab: Lab) -> Sample:
        example = passkey.build(lab.tokenizer, length=self.length, seed=self.seed, answer_room=passkey.ANSWER_ROOM)
        lab.attach(self.row, self.length, implementation=self.implementation, kv_tier=self.kv_tier)
        ids = torch.tensor([example.input_ids], device=lab.device)
        with Peak(lab.device) as peak:
            begun = time.perf_counter()
            logits, cache = prefill(lab.model, ids, 1)
            _wait(lab.device)
            read_at = time.perf_counter()
            tokens = list(decode(lab.model, logits, cache, TIMED_TOKENS if self.answers else 0))
            _wait(lab.device)
            done = time.perf_counter()
            del logits, cache
        figures = {"prefill": read_at - begun, "memory": peak.bytes}
        if len(tokens) > 1:  # the first comes out of the prefill
            figures["token"] = (done - read_at) / (len(tokens) - 1)
        text = lab.tokenizer.decode(tokens, skip_special_tokens=True) if tokens else ""
        return Sample(
            self.row.label,
            self.length,
            self.seed,
            example.depth,
            example.answer,
            prediction=text,
            correct=passkey.score(text, example.references) if self.answers else 0.0,
            seconds=done - begun,
            task=self.told,
            tokens=len(example.input_ids),
            figures=figures,
        )


def _wait(device: torch.device) -> None:
    """Until a GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
