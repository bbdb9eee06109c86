"""The setup of a paper's tables: the model, the scale, the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from transformers import PreTrainedModel

from longspan.errors import LongspanError
from longspan_eval.datafile import check_folder
from longspan_eval.measure import Keys
from longspan_eval.session import Session
from longspan_eval.spec import MethodSpec
from longspan_eval.subject import Subject
from longspan_eval.task import Record, Task

Scale = Literal["paper", "quick"]
ScaleTo = Literal["auto", "paper", "window"]
T = TypeVar("T")


@dataclass
class PaperSession(Session):
    """A model, and how its tables are to be made.

    Attributes:
        scale: ``"paper"``: the paper's numbers of prompts; ``"quick"``: a few of each, for small models.
        samples: prompts a cell at most; None: as the scale says.
        max_length: cells of more tokens are left out, and say so; None: none is.
        data_dir: where the files lie that tables read; None: there are none.
        calibration: of reduced scores for the model, or None.
        window: the trained window in tokens, if the config is not right about it.
        windows: the windows of the paper's models, the first of which its numbers are scaled from.
        scale_to: ``"paper"``: numbers of tokens as the paper prints them; ``"window"``: scaled to the model's window;
            ``"auto"``: the paper's for a model of a window that the paper's have, else scaled.
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
    windows: tuple[int, ...] = ()
    scale_to: ScaleTo = "auto"

    def __post_init__(self) -> None:
        super().__init__(self.model, self.tokenizer, window=self.window)
        self.keys = Keys(self.subject, self.device.type)
        self._unbuilt: dict[tuple[str, int], str | None] = {}
        if self.scale not in ("paper", "quick"):
            raise LongspanError(f"the scale is paper or quick, not {self.scale!r}")
        if self.scale_to not in get_args(ScaleTo):
            raise LongspanError(f"numbers are scaled to {' or '.join(get_args(ScaleTo))}, not {self.scale_to!r}")
        for name, value in (("samples", self.samples), ("max_length", self.max_length)):
            if value is not None and value < 1:
                raise LongspanError(f"{name} must be at least 1, not {value}")
        check_folder(self.data_dir)

    def choose(self, paper: T, quick: T) -> T:
        """The paper's value, or a smaller choice, by the scale."""
        return paper if self.scale == "paper" else quick

    def prompts(self, paper: int, quick: int) -> int:
        """How many prompts a cell gets."""
        n = self.choose(paper, quick)
        return n if self.samples is None else min(n, self.samples)

    @property
    def as_printed(self) -> bool:
        """Whether numbers of tokens are the paper's own."""
        if self.scale_to == "auto":
            return self.subject.window in self.windows
        return self.scale_to == "paper"

    @property
    def chat(self) -> bool:
        """Whether the model was taught to chat, as its tokenizer has a template for it."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def tokens(self, paper: float, of: int) -> int:
        """A paper's number of tokens at a window of ``of``: as it is, or for this model's window; 1 at least."""
        return max(round(paper if self.as_printed else paper * self.subject.window / of), 1)

    def lengths(self, paper: Sequence[float], of: int) -> list[int]:
        """``tokens`` of each, every length once."""
        return list(dict.fromkeys(self.tokens(length, of) for length in paper))

    def in_windows(self, length: int) -> str:
        """A length as tables call it, in windows of this model and in tokens: ``8x (4,096)``."""
        return f"{round(length / self.subject.window, 2):,g}x ({length:,})"

    def at_most(self, quick: int) -> int | None:
        """How many of a file's records or a text's windows a cell gets; None: all."""
        return self.samples if self.scale == "paper" else self.prompts(quick, quick)

    def too_long(self, length: int) -> str | None:
        """Why a cell of that length is left out, or None."""
        if self.max_length is not None and length > self.max_length:
            return f"{length:,} tokens are more than --max-length {self.max_length:,}"
        return None

    def unfit(self, spec: MethodSpec, length: int) -> str | None:
        """Why nothing can be read at a length, as it is too long or the method's parameters do not fit, or None."""
        problem = self.keys.parameters(spec, length).get("error")
        return self.too_long(length) or (None if problem is None else str(problem))

    def unbuilt(self, task: Task, length: int) -> str | None:
        """Why a synthetic task has no prompt of a length, or None; found by making one, once."""
        place = task.name, length
        if place not in self._unbuilt:
            self._unbuilt[place] = why_unbuilt(self.tokenizer, task, length)
        return self._unbuilt[place]


def why_unbuilt(tokenizer: Any, task: Task, length: int, record: Record | None = None) -> str | None:
    """Why a task has no prompt of a length, or None."""
    try:
        task.build(tokenizer, length=length, seed=0, record=record)
    except ValueError as error:
        return str(error) if task.name in str(error) else f"{task.name}: {error}"
    return None
