"""One reading of a text by a model: the loss of its end, and what was planted in it, asked for one by one."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

import torch

from longspan_eval.generate import decode, prefill, told
from longspan_eval.measure import Keys, Measure
from longspan_eval.perplexity import sliced_losses
from longspan_eval.planted import ROOM, Planted, says
from longspan_eval.sample import NOT_FINITE, Sample
from longspan_eval.session import Session
from longspan_eval.tasks.fragments import piece

VERSION = 2
NEW_TOKENS = 12


class Texts(Protocol):
    """What is read."""

    digest: str

    def planted(self, kind: str, number: int, length: int) -> Planted: ...


@dataclass(frozen=True)
class PlantedReading(Measure):
    """A text, read once under a method; each answer goes on from a copy of what was read.

    Attributes:
        kind: of the text, whose number is ``seed``.
        window: the window that is declared.
        cut: read no more of the text than what fits into the window, its end.
    """

    kind: str = field(kw_only=True)
    window: int = field(kw_only=True)
    cut: bool = field(default=False, kw_only=True)
    texts: Texts = field(compare=False, repr=False, kw_only=True)

    @property
    def name(self) -> str:
        return self.kind

    def depends_on(self, keys: Keys) -> dict[str, Any]:
        return {
            "task": self.kind,
            "version": VERSION,
            "length": self.length,
            "declared": self.window,
            "cut": self.cut,
            "texts": self.texts.digest,
            **keys.method(self.spec, self.length, self.window),
            "seed": self.seed,
        }

    @torch.inference_mode()
    def run(self, session: Session) -> Sample:
        text = self.texts.planted(self.kind, self.seed, self.length)
        read = text.input_ids[ROOM - self.window :] if self.cut else text.input_ids
        ids = torch.tensor([read], device=session.device)
        scored = () if self.cut else text.scored
        keep = len(read) - min(scored) + 1 if scored else 1
        session.attach(self.spec, self.length, window=self.window)
        clock = clock_of(session)
        began, began_cpu, began_reading = time.perf_counter(), time.process_time(), clock()
        logits, cache = prefill(session.model, ids, keep)
        losses = sliced_losses(logits[0], ids[0], scored)
        if not bool(logits[0, -1].isfinite().all()) or not all(map(math.isfinite, losses)):
            raise ValueError(NOT_FINITE)
        read_cpu, read_seconds = time.process_time() - began_cpu, clock() - began_reading
        del logits
        asking = Asking(session, cache)
        said = [asking.answer(one.question, one.value) for one in text.asked]
        right = [float(says(one, asked.value)) for one, asked in zip(said, text.asked, strict=True)]
        return self.sample(
            answer=" | ".join(one.value for one in text.asked),
            prediction=" | ".join(" ".join(one.split()) for one in said),
            correct=math.fsum(right) / len(right),
            loss=math.fsum(losses) / len(losses) if losses else math.nan,
            scored=len(losses),
            seconds=time.perf_counter() - began,
            tokens=ids.shape[1],
            filler=text.source,
            figures={
                "declared": float(self.window),
                "cut": float(self.cut),
                "asked": float(len(right)),
                "read_cpu": round(read_cpu, 2),
                "read_seconds": round(read_seconds, 3),
                "decoded": float(asking.tokens),
                "decode_seconds": round(asking.seconds, 3),
                "asked_cpu": round(time.process_time() - began_cpu - read_cpu, 2),
                **{f"found{n}": one for n, one in enumerate(right)},
            },
        )


def clock_of(session: Session) -> Callable[[], float]:
    """The time of this process on one thread of a CPU, which leaves out what other programs had; else that of all."""
    alone = session.device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


class Asking:
    """Answers questions, each from a copy of what was read.

    Attributes:
        tokens, seconds: those decoded after the first of each answer, and their time.
    """

    def __init__(self, session: Session, cache: Any) -> None:
        self._session, self._cache, self._clock = session, cache, clock_of(session)
        self.tokens, self.seconds = 0, 0.0

    def answer(self, question: str, value: str) -> str:
        """What is said to a question, up to the end of its first sentence, or to the value."""
        model, own = self._session.model, copy.deepcopy(self._cache)
        ids = torch.tensor([piece(self._session.tokenizer, question)], device=model.device)
        logits, own = prefill(model, ids, cache=own)
        tokens = decode(model, logits, own, NEW_TOKENS if value.isdigit() else 8)
        first = list(islice(tokens, 1))
        began = self._clock()

        def done(text: str) -> bool:
            # A number may go on with the next token, which a word does not while it is the value.
            return "." in text or "\n" in text.lstrip() or (value.isalpha() and says(text, value))

        said, text = told(self._session.tokenizer, chain(first, tokens), done)
        if said:
            self.tokens, self.seconds = self.tokens + len(said) - 1, self.seconds + self._clock() - began
        return text
