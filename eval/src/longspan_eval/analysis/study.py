"""An extended model's choices when it answers a prompt, and the figures of many such prompts by length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedModel

from longspan.attend import Choice
from longspan.errors import LongspanError
from longspan.hf.attach import attachment_of
from longspan.methods import Method
from longspan.recording.chunks import Chunking
from longspan.recording.record import record
from longspan_eval.analysis.locate import locate
from longspan_eval.analysis.metrics import cover_rate, hit_rate, uniformity
from longspan_eval.figure import wilson
from longspan_eval.generate import decode, prefill, told
from longspan_eval.task import Task

_PLACES = 2  # where an answer may stand in a prompt of a synthetic task: some tell it twice

Score = Callable[[str], float]


@dataclass(frozen=True)
class Question:
    """A prompt to read and answer.

    Attributes:
        answers: where in them the answer lies: ``(first token, one past the last)``; empty if that is not known.
        score: how right an answer is, 0 to 1; None if that is not known.
        new_tokens: the most tokens of an answer; 0 for none.
        until: text after which the answer may stop.
        seed: what it was drawn from; None for a text of the user's own.
    """

    ids: list[int]
    answers: tuple[tuple[int, int], ...] = ()
    score: Score | None = None
    new_tokens: int = 0
    until: Callable[[str], bool] | None = None
    seed: int | None = None

    @classmethod
    def of_task(cls, task: Task, tokenizer: Any, *, length: int, seed: int) -> Question:
        """A synthetic task's prompt; where its answers lie is found by their text."""
        example = task.build(tokenizer, length=length, seed=seed)
        answers = sorted({at for text in example.references for at in locate(tokenizer, example.input_ids, text)})
        if len(answers) > _PLACES * len(example.references):
            raise LongspanError(
                f"{task.name}: its {len(example.references)} answers stand at {len(answers)} places of the prompt, "
                "so it is not known which of them to read; use a task whose answers stand nowhere else, such as passkey"
            )
        return cls(
            example.input_ids, tuple(answers), lambda text: task.score(text, example.references), task.new_tokens,
            task.until, seed,
        )  # fmt: skip


@dataclass(frozen=True)
class Inspection:
    """The choices at the query that the first token of the answer comes from.

    That is the prompt's last token, or where the model first writes space (tokenizers that keep it apart from what
    follows), the last of that.

    Attributes:
        prompt, ids: what was to be read, and the tokens up to that query.
        chunks, choices: the chunks of those, and each layer's choice.
        answers: the chunks that hold the answer.
        cover, gini: ``cover_rate`` and ``uniformity``.
        hit1, hit5: ``hit_rate``; NaN if the answer's place is unknown, if it lies in chunks that are
            kept anyway, or if no score decided.
        prediction: what the model answered.
        score: how right that is; NaN if that is not known.
    """

    prompt: Question
    ids: list[int]
    chunks: Chunking
    choices: list[Choice]
    answers: list[int]
    cover: float
    gini: float
    hit1: float
    hit5: float
    prediction: str
    score: float

    @property
    def split(self) -> bool | None:
        """Whether a chunk's border cuts the answer at one of its places; None if those are not known.

        An answer that stands whole in two chunks, such as a passkey that is told twice, is not split.
        """
        if not self.answers:
            return None
        return any(len(self.chunks.holding([place])) > 1 for place in self.prompt.answers)


@torch.inference_mode()
def inspect(model: PreTrainedModel, tokenizer: Any, prompt: Question, *, chunk: int | None = None) -> Inspection:
    """Read a prompt, answer, and record what is chosen where the answer begins.

    The prompt's last token is read alone, so that it chooses for itself even if the queries of a query
    chunk choose together.

    Args:
        model: extended with a method that chooses.
        chunk: tokens of a chunk; the method's own unless given, for ESA and LM-Infinite a sixteenth of the window.

    Raises:
        LongspanError: the model is not extended so, or the prompt fits its window.
    """
    size = len(prompt.ids)
    attachment = attachment_of(model)
    if attachment is not None and attachment.attender.method.selects and size <= attachment.report.window:
        raise LongspanError(
            f"{size:,} tokens fit the window of {attachment.report.window:,}, and inside it nothing is chosen: "
            "pass a longer text"
        )
    ids = torch.tensor([prompt.ids], device=model.device)
    with record(model) as trace:  # first, since it says what is wrong with the model
        _, cache = prefill(model, ids[:, :-1])
        logits, cache = prefill(model, ids[:, -1:], cache=cache)
        tokens, text = told(tokenizer, decode(model, logits, cache, prompt.new_tokens), prompt.until)
    # How many tokens of space it begins with; if there is no answer, take the choices of the prompt's last token.
    beginnings = (tokenizer.decode(tokens[: n + 1], skip_special_tokens=True) for n in range(len(tokens)))
    space = sum(1 for _ in takewhile(lambda begun: not begun.strip(), beginnings)) if text.strip() else 0
    read = prompt.ids + tokens[:space]
    choices, chunks = trace.at(len(read) - 1), chunks_for(trace.method, trace.window, len(read), chunk)
    answers = chunks.holding(prompt.answers)
    ranked = bool(answers) and all(one.scores is not None for one in choices)
    return Inspection(
        prompt=prompt,
        ids=read,
        chunks=chunks,
        choices=choices,
        answers=answers,
        cover=cover_rate(choices, chunks),
        gini=uniformity(choices, chunks),
        hit1=hit_rate(choices, chunks, answers, 1) if ranked else math.nan,
        hit5=hit_rate(choices, chunks, answers, 5) if ranked else math.nan,
        prediction=text,
        score=math.nan if prompt.score is None else prompt.score(text),
    )


def chunks_for(method: Method, window: int, length: int, chunk: int | None = None) -> Chunking:
    """The chunks that figures are given by; see ``inspect``."""
    if chunk is None and method.name not in ("longheads", "infllm"):
        chunk = max(window // 16, 1)
    return Chunking.of(method, length, chunk)


@dataclass(frozen=True)
class Found:
    """How many of some answers were right: ``found`` of ``n``, with Wilson's 95% interval."""

    found: float
    n: int

    @property
    def rate(self) -> float:
        return self.found / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.found, self.n)

    @classmethod
    def of(cls, inspections: Sequence[Inspection]) -> Found:
        known = [one.score for one in inspections if not math.isnan(one.score)]
        return cls(math.fsum(known), len(known))


@dataclass(frozen=True)
class LengthSummary:
    """The figures of one length: LongHeads' Table 3, and its Table 7 if answers are scored.

    Attributes:
        length: tokens asked for. tokens: of a prompt, on average. chunks: of a prompt, on average.
        n: prompts.
        cover, gini, hit1, hit5: means over the prompts that have them; NaN if none has.
        found: right answers. split, whole: the same of answers that a chunk's border cuts, and of the others.
    """

    length: int
    tokens: float
    chunks: float
    n: int
    cover: float
    gini: float
    hit1: float
    hit5: float
    found: Found
    split: Found
    whole: Found


def summarise(length: int, inspections: Sequence[Inspection]) -> LengthSummary:
    """The row of one length."""
    if not inspections:
        raise ValueError(f"nothing was looked at, at {length} tokens")
    return LengthSummary(
        length=length,
        tokens=fmean(len(one.prompt.ids) for one in inspections),
        chunks=fmean(len(one.chunks) for one in inspections),
        n=len(inspections),
        cover=fmean(one.cover for one in inspections),
        gini=fmean(one.gini for one in inspections),
        hit1=_mean([one.hit1 for one in inspections]),
        hit5=_mean([one.hit5 for one in inspections]),
        found=Found.of(inspections),
        split=Found.of([one for one in inspections if one.split is True]),
        whole=Found.of([one for one in inspections if one.split is False]),
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan
