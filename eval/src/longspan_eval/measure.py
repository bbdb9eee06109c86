"""One thing to measure, all that its sample depends on, and the key of that sample."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from longspan.methods.known import package_of
from longspan_eval.generate import read
from longspan_eval.sample import Sample, versions
from longspan_eval.session import Session
from longspan_eval.spec import MethodSpec
from longspan_eval.subject import Subject
from longspan_eval.task import Record, Task


@dataclass(frozen=True)
class Measure(ABC):
    """One thing to measure; equal ones have equal keys, and are measured once.

    Attributes:
        spec: how the model is run.
        length: tokens of the text that is read, and of its answer.
        seed: what the text is drawn from, or the round of what is timed.
    """

    spec: MethodSpec
    length: int
    seed: int = 0

    @property
    def name(self) -> str:
        """The kind of its samples, such as the task; measures of one name take alike long."""
        return type(self).__name__.lower()

    @abstractmethod
    def depends_on(self, keys: Keys) -> dict[str, Any]:
        """All that its sample depends on besides the model, as JSON has it."""

    @abstractmethod
    def run(self, session: Session) -> Sample:
        """Measure it. ValueError says that it cannot be."""

    def sample(self, **found: Any) -> Sample:
        """Its sample, with what was found."""
        about = {"depth": None, "answer": "", "task": self.name}
        return Sample(self.spec.label, self.length, self.seed, **{**about, **found})

    def failed(self, reason: str) -> Sample:
        """The sample of a measure that has no result, and why."""
        return self.sample(error=" ".join(reason.split()))


@dataclass(frozen=True)
class TaskPrompt(Measure):
    """A prompt of a task, read and answered; ``correct`` is its score.

    Attributes:
        depth: where the thing to find is to lie, 0 to 1; None leaves it to the seed.
        record: what a task from a file makes its prompt of.
    """

    task: Task = field(compare=False, repr=False, kw_only=True)
    depth: float | None = field(default=None, kw_only=True)
    record: Record | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def name(self) -> str:
        return self.task.name

    def depends_on(self, keys: Keys) -> dict[str, Any]:
        return {
            "task": self.task.name,
            "version": self.task.version,
            **self.task.variant,
            "new_tokens": self.task.new_tokens,
            "length": self.length,
            **keys.method(self.spec, self.length),
            "seed": self.seed,
            "depth": self.depth,
            "record": None if self.record is None else digest(self.record),
        }

    def sample(self, **found: Any) -> Sample:
        return super().sample(**{"depth": self.depth, "filler": self.task.filler, **found})

    def run(self, session: Session) -> Sample:
        task = self.task
        example = task.build(
            session.tokenizer, length=self.length, seed=self.seed, depth=self.depth, record=self.record
        )
        session.attach(self.spec, self.length)
        reading = read(
            session.model,
            session.tokenizer,
            example.input_ids,
            scored=example.scored,
            max_new_tokens=task.new_tokens,
            until=task.until,
        )
        correct = float(task.score(reading.text, example.references))
        if not 0.0 <= correct <= 1.0:
            raise ValueError(f"{task.name}: a score lies in 0..1, not {correct}")
        losses = reading.losses
        return self.sample(
            depth=example.depth,
            answer=example.answer,
            prediction=reading.text,
            correct=correct,
            loss=math.fsum(losses) / len(losses) if losses else math.nan,
            scored=len(losses),
            seconds=reading.prefill_seconds + reading.decode_seconds,
            tokens=len(example.input_ids),
            references=example.references if len(example.references) > 1 else (),
        )


class Keys:
    """Makes the keys of samples: they change with anything that a sample depends on.

    Args:
        subject: the model.
        device: the type of what computes, such as ``"cpu"``.
    """

    def __init__(self, subject: Subject, device: str = "cpu") -> None:
        self.subject, self._device = subject, device
        self._parameters: dict[tuple[MethodSpec, int, int], dict[str, Any]] = {}
        self._packages: dict[str, tuple[str, str] | None] = {}

    def __call__(self, measure: Measure) -> str:
        """The key of a measure's sample."""
        subject = self.subject
        return key_of(
            {
                **measure.depends_on(self),
                "model": subject.sha256,
                "tokenizer": subject.tokenizer_sha256,
                "window": subject.window,
                **({"config": subject.config_sha256} if subject.config_sha256 else {}),
                "device": self._device,
                "versions": versions(),  # a table never mixes samples of two
            }
        )

    def method(self, spec: MethodSpec, length: int, window: int | None = None) -> dict[str, Any]:
        """A method's name and parameters, and of one of another package its version, which is as much a part of it."""
        if spec.name not in self._packages:
            self._packages[spec.name] = package_of(spec.name)
        package = self._packages[spec.name]
        own = {} if package is None else {"package": list(package)}
        return {"method": spec.name, "parameters": self.parameters(spec, length, window), **own}

    def parameters(self, spec: MethodSpec, length: int, window: int | None = None) -> dict[str, Any]:
        """``MethodSpec.parameters``, worked out once: those of a calibration take reading its file."""
        place = spec, length, window or self.subject.window
        if place not in self._parameters:
            self._parameters[place] = spec.parameters(place[2], length)
        return self._parameters[place]


def key_of(what: dict[str, Any]) -> str:
    """A key for everything that a sample depends on, given as JSON has it."""
    return digest(what)[:32]


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, such as a record; equal values have equal ones."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
