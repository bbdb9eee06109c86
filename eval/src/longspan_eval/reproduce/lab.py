"""What a paper's tables are measured with: the model, the scale, the data, and one way to run anything on it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from longspan.errors import LongspanError, out_of_memory
from longspan.hf import extend, restore
from longspan.store import Tier
from longspan_eval.plan import key_of
from longspan_eval.results import Sample
from longspan_eval.rows import Row
from longspan_eval.study import versions
from longspan_eval.subject import Subject
from longspan_eval.task import Record, Task

Scale = Literal["paper", "quick"]
T = TypeVar("T")


class Measure(Protocol):
    """One thing to measure; equal ones have equal ``what``, and are measured once."""

    @property
    def length(self) -> int:
        """Tokens of the text that is read."""

    def what(self, lab: Lab) -> dict[str, Any]:
        """All that its sample depends on besides the model, as JSON has it."""

    def run(self, lab: Lab) -> Sample:
        """Measure it. ValueError says that it cannot be."""


@dataclass
class Lab:
    """A model, and how its tables are to be made.

    Attributes:
        model, tokenizer, subject: the model where it is to run, its tokenizer, and what a sample depends on of them.
        scale: ``"paper"``: the paper's numbers of prompts; ``"quick"``: a few of each, for small models.
        samples: prompts a cell at most; None: as the scale says.
        max_length: cells of more tokens are left out, and say so; None: none is.
        data_dir: where the files lie that tables read; None: there are none.
        calibration: of reduced scores for the model, or None.
        window: the trained window in tokens, where the config is not right about it.
    """

    model: PreTrainedModel
    tokenizer: Any
    subject: Subject
    scale: Scale = "paper"
    samples: int | None = None
    max_length: int | None = None
    data_dir: Path | None = None
    calibration: Path | None = None
    window: int | None = None
    _attached: tuple[Any, ...] | None = field(default=None, repr=False)
    _parameters: dict[tuple[Row, int, int], dict[str, Any]] = field(default_factory=dict, repr=False)
    _unbuilt: dict[tuple[str, int], str | None] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.scale not in ("paper", "quick"):
            raise LongspanError(f"the scale is paper or quick, not {self.scale!r}")
        for name, value in (("samples", self.samples), ("max_length", self.max_length)):
            if value is not None and value < 1:
                raise LongspanError(f"{name} must be at least 1, not {value}")
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise LongspanError(f"{self.data_dir}: there is no such folder; it is to hold the data files")

    @property
    def device(self) -> torch.device:
        return self.model.device

    def choose(self, paper: T, quick: T) -> T:
        """What the paper has, or a smaller choice, by the scale."""
        return paper if self.scale == "paper" else quick

    def prompts(self, paper: int, quick: int) -> int:
        """How many prompts a cell gets."""
        n = self.choose(paper, quick)
        return n if self.samples is None else min(n, self.samples)

    def tokens(self, paper: float, of: int) -> int:
        """A paper's number of tokens at a window of ``of``, for this model's window; 1 at least."""
        return max(round(paper * self.subject.window / of), 1)

    def lengths(self, paper: Sequence[float], of: int) -> list[int]:
        """``tokens`` of each, every length once."""
        return list(dict.fromkeys(self.tokens(length, of) for length in paper))

    def parameters(self, row: Row, length: int, window: int | None = None) -> dict[str, Any]:
        """A row's name and parameters, worked out once: those of a calibration take reading its file."""
        place = row, length, window or self.subject.window
        if place not in self._parameters:
            self._parameters[place] = row.parameters(place[2], length)
        return {"row": row.name, "parameters": self._parameters[place]}

    def unbuilt(self, task: Task, length: int) -> str | None:
        """Why a made task cannot be asked at a length, or None; found by making a prompt, once."""
        place = task.name, length
        if place not in self._unbuilt:
            self._unbuilt[place] = why_unbuilt(self.tokenizer, task, length)
        return self._unbuilt[place]

    def key(self, measure: Measure) -> str:
        """The key of a measure's sample: it changes with anything that the sample depends on."""
        return key_of(
            {
                "kind": type(measure).__name__,
                **measure.what(self),
                "model": self.subject.sha256,
                "tokenizer": self.subject.tokenizer_sha256,
                "window": self.subject.window,
                "device": self.device.type,
                "versions": versions(),
            }
        )

    def attach(
        self,
        row: Row,
        length: int,
        *,
        window: int | None = None,
        implementation: str | None = None,
        kv_tier: Tier = "device",
    ) -> None:
        """Make the model run a row for prompts of ``length`` tokens, unless that is what it runs.

        Args:
            window: the trained window, where a table takes another than the model's.
            implementation: transformers' attention for the stock row, such as ``"eager"``.
            kv_tier: where an extended model keeps keys and values.
        """
        wanted = (row, length, window, implementation, kv_tier)
        if self._attached == wanted:
            return
        self.detach()
        method = row.reaching(length)
        if method is None:
            if implementation is not None:
                self._stock = self.model.config._attn_implementation
                self.model.set_attn_implementation(implementation)
        else:
            extend(
                self.model,
                method,
                window=window or self.window,
                calibration=row.calibration,
                kv_tier=kv_tier,
            )
        self._attached = wanted

    def detach(self) -> None:
        """Leave the model as transformers has it."""
        restore(self.model)
        if self._attached is not None and self._attached[3] is not None:
            self.model.set_attn_implementation(self._stock)
        self._attached = None

    def measure(self, measure: Measure) -> Sample:
        """The sample of a measure; what goes wrong is a sample with an ``error``, so that a night's run goes on."""
        try:
            return measure.run(self)
        except Exception as error:
            self.detach()
            if out_of_memory(error):
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                reason = "out of memory"
            elif isinstance(error, ValueError):
                reason = " ".join(str(error).split())
            else:  # somebody's mistake, so it says where
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
                reason = " ".join(f"{type(error).__name__}: {error} ({where})".split())
            return Sample("", measure.length, 0, None, "", error=reason)


def why_unbuilt(tokenizer: Any, task: Task, length: int, record: Record | None = None) -> str | None:
    """Why a task has no prompt of a length, or None."""
    try:
        task.build(tokenizer, length=length, seed=0, record=record)
    except ValueError as error:
        return str(error) if task.name in str(error) else f"{task.name}: {error}"
    return None
