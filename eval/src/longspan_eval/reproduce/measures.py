"""The kinds of things that tables measure besides prompts, each with all that its sample depends on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from longspan.memory import KVTier
from longspan.text.ends import before_end, end_tokens
from longspan_eval.analysis.metrics import vote_rates
from longspan_eval.analysis.study import Inspection, Question, inspect
from longspan_eval.generate import decode, prefill, told
from longspan_eval.measure import Keys, Measure, TaskPrompt
from longspan_eval.reproduce.memory import PeakMemory
from longspan_eval.reproduce.texts import Text
from longspan_eval.sample import Sample
from longspan_eval.session import Session
from longspan_eval.task import Task
from longspan_eval.tasks import passkey
from longspan_eval.tasks.scores import first_integer


@dataclass(frozen=True)
class SplitPrompt(TaskPrompt):
    """A prompt of a synthetic task, and whether the border between two chunks cuts its answer; for stock, say.

    Attributes:
        chunk: tokens of a chunk.
    """

    chunk: int = field(kw_only=True)

    def depends_on(self, keys: Keys) -> dict[str, Any]:
        return {"kind": "split prompt", **super().depends_on(keys), "chunk": self.chunk}

    def run(self, session: Session) -> Sample:
        question = Question.of_task(self.task, session.tokenizer, length=self.length, seed=self.seed)
        split = any(first // self.chunk != (stop - 1) // self.chunk for first, stop in question.answers)
        return replace(super().run(session), figures={"split": float(split)})


@dataclass(frozen=True)
class Inspected(Measure):
    """A method's choices where the answer begins: cover rate, Gini coefficient, hit rates; and the answer's score.

    Attributes:
        task: synthetic, whose prompt is read; else the first ``length`` tokens of a ``text`` are.
        window: the window in tokens, if it is not the model's.
    """

    task: Task | None = field(default=None, compare=False, repr=False, kw_only=True)
    text: Text | None = field(default=None, compare=False, repr=False, kw_only=True)
    window: int | None = field(default=None, kw_only=True)

    def depends_on(self, keys: Keys) -> dict[str, Any]:
        window = self.window or keys.subject.window
        return {
            "kind": self.name,
            **keys.method(self.spec, self.length, window),
            "attention_window": window,
            "length": self.length,
            "seed": self.seed,
            "task": None if self.task is None else [self.task.name, self.task.version],
            "text": None if self.text is None else self.text.sha256,
            **({} if self.task is None else self.task.variant),
            "measure": 4,
        }

    def look(self, session: Session) -> Inspection:
        """The choices themselves."""
        if self.task is not None:
            question = Question.of_task(self.task, session.tokenizer, length=self.length, seed=self.seed)
        else:
            assert self.text is not None
            question = Question(list(self.text.ids[: self.length]))
        session.attach(self.spec, self.length, window=self.window)
        return inspect(session.model, session.tokenizer, question)

    def run(self, session: Session) -> Sample:
        begun = time.perf_counter()
        seen = self.look(session)
        figures = {"cover": seen.cover, "gini": seen.gini, "hit1": seen.hit1, "hit5": seen.hit5}
        for top in (1, 5) if not math.isnan(seen.hit1) else ():
            layer, model = vote_rates(seen.choices, seen.chunks, seen.answers, top)
            figures |= {f"layer hit{top}": layer, f"model hit{top}": model}
        figures |= {"chunks": float(len(seen.chunks)), "split": math.nan if seen.split is None else float(seen.split)}
        return self.sample(
            prediction=seen.prediction,
            correct=0.0 if math.isnan(seen.score) else seen.score,
            seconds=time.perf_counter() - begun,
            tokens=len(seen.prompt.ids),
            figures=figures,
        )


@dataclass(frozen=True)
class Timed(Measure):
    """A passkey prompt, read and answered by the clock: seconds of the prefill, seconds a token, peak memory.

    Attributes:
        tokens: how many tokens are generated and timed, past the end of the answer too, so that all rows of a table
            generate as many; 0 for the prefill alone.
        implementation: transformers' attention, for the stock model.
    """

    tokens: int = field(default=0, kw_only=True)
    implementation: str | None = field(default=None, kw_only=True)
    kv_tier: KVTier = field(default="device", kw_only=True)

    @property
    def name(self) -> str:
        return f"timed {self.implementation or self.kv_tier}"

    def depends_on(self, keys: Keys) -> dict[str, Any]:
        return {
            "kind": "timed",
            **keys.method(self.spec, self.length),
            "length": self.length,
            "seed": self.seed,
            "tokens": self.tokens,
            "implementation": self.implementation,
            "kv_tier": self.kv_tier,
            "threads": torch.get_num_threads(),
            "measure": 4,
            "version": passkey.VERSION,
        }

    @torch.inference_mode()
    def run(self, session: Session) -> Sample:
        example = passkey.build(session.tokenizer, length=self.length, seed=self.seed, answer_room=passkey.ANSWER_ROOM)
        session.attach(self.spec, self.length, implementation=self.implementation, kv_tier=self.kv_tier)
        ids = torch.tensor([example.input_ids], device=session.device)
        with PeakMemory(session.device) as peak:
            begun = time.perf_counter()
            logits, cache = prefill(session.model, ids)
            _wait(session.device)
            read_at = time.perf_counter()
            tokens = list(decode(session.model, logits, cache, self.tokens, past_end=True))
            _wait(session.device)
            done = time.perf_counter()
            del logits, cache
        figures = {"prefill": read_at - begun, "memory": peak.bytes}
        if self.tokens > 1:  # the first comes out of the prefill
            figures["token"] = (done - read_at) / (self.tokens - 1)
        _, text = told(session.tokenizer, before_end(tokens, end_tokens(session.model)))
        return self.sample(
            depth=example.depth,
            answer=example.answer,
            prediction=text,
            correct=first_integer(text, example.references) if self.tokens else 0.0,
            seconds=done - begun,
            tokens=len(example.input_ids),
            figures=figures,
            kv_tier=self.kv_tier,
        )


def _wait(device: torch.device) -> None:
    """Until a GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
