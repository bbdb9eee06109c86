"""The study of ``longspan eval``: tasks by methods by lengths."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from longspan.errors import LongspanError
from longspan_eval.cell import Cell
from longspan_eval.datafile import check_folder, read_records
from longspan_eval.estimate import takes_all
from longspan_eval.measure import TaskPrompt
from longspan_eval.reduce import Reduce, score, window_perplexity
from longspan_eval.schedule import Rank
from longspan_eval.spec import STOCK, MethodSpec
from longspan_eval.task import Record, Task
from longspan_eval.windows import PERPLEXITY, Windows


@dataclass(frozen=True)
class Evaluation:
    """Tasks by methods by lengths.

    Attributes:
        tasks, specs: stock is put in front of the methods if it is missing, so that no figure stands by itself.
        lengths: tokens of prompt and answer.
        samples: prompts a cell; of a task from a file at most as many as it has records.
        depths: with it each cell's tasks that know depths get so many prompts at each of that many, evenly from the
            start of the text to its end.
        data: the result of ``read_data`` for the tasks and the folder; None: it is called.
        max_full_seconds: cells of full attention whose prompts take longer are marked instead of measured.
    """

    tasks: tuple[Task, ...]
    specs: tuple[MethodSpec, ...]
    lengths: tuple[int, ...]
    samples: int = 50
    depths: int | None = None
    seed: int = 0
    data_dir: Path | None = None
    max_full_seconds: float | None = None
    windows: Windows | None = None
    data: Mapping[str, Sequence[Record]] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        listed: dict[str, list[Any]] = {"task": [task.name for task in self.tasks], "length": list(self.lengths)}
        for what, values in listed.items():
            if not values:
                raise LongspanError(f"give at least one {what}")
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise LongspanError(f"the {what} {twice} is listed twice")
        for name, least in (("samples", self.samples), ("depths", self.depths), ("lengths", min(self.lengths))):
            if least is not None and least < 1:
                raise LongspanError(f"{name} must be at least 1, not {least}")
        if self.depths is not None and not any(task.at_depths for task in self.tasks):
            names = ", ".join(task.name for task in self.tasks)
            raise LongspanError(f"depths were given, but {names} has none; see `longspan eval --list`")
        check_folder(self.data_dir)
        if (self.windows is None) != (PERPLEXITY not in self.tasks):
            raise LongspanError(f"windows are for the task {PERPLEXITY.name}, which requires them")
        if self.max_full_seconds is not None and not self.max_full_seconds > 0:
            raise LongspanError(f"max_full_seconds must be above 0, not {self.max_full_seconds:g}")
        if all(spec.name != STOCK for spec in self.specs):
            object.__setattr__(self, "specs", (MethodSpec(None), *self.specs))

    def depths_of(self, task: Task) -> tuple[float | None, ...]:
        """The depths that a task's prompts have; None leaves one to its seed."""
        if self.depths is None or not task.at_depths:
            return (None,)
        return spread(self.depths)

    @cached_property
    def records(self) -> Mapping[str, Sequence[Record]]:
        """The records of each task that reads a file; raises LongspanError if one cannot be read."""
        records = read_data(self.tasks, self.data_dir) if self.data is None else self.data
        return records if self.windows is None else {**records, PERPLEXITY.name: list(self.windows.records)}

    def prompts(self, task: Task) -> Iterator[tuple[int, float | None, Record | None]]:
        """Seed, depth and record of each prompt of a cell.

        More ``samples`` only add to them.
        """
        depths = self.depths_of(task)
        if task.name not in self.records:
            for n in range(self.samples):
                for d, depth in enumerate(depths):
                    yield self.seed + n * len(depths) + d, depth, None
            return
        records = self.records[task.name]
        for index in drawn(len(records), self.samples, self.seed):
            for depth in depths:
                yield self.seed + index, depth, records[index]

    def cells(self) -> list[Cell]:
        """Every cell, by task, method and length; a task is a table."""
        return [
            Cell(
                spec.label,
                f"{length:,}",
                self._reduce(task, length),
                tuple(
                    TaskPrompt(spec, length, seed, task=task, depth=depth, record=record)
                    for seed, depth, record in self.prompts(task)
                ),
                table=task.name,
            )
            for task in self.tasks
            for spec in self.specs
            for length in self.lengths
        ]

    def _reduce(self, task: Task, length: int) -> Reduce:
        if task.measure == "score":
            return score
        windows = {seed: record for seed, _, record in self.prompts(task) if record is not None}
        return window_perplexity(windows, length)

    def check(self, tokenizer: Any) -> None:
        """Raise LongspanError if the shortest length is too short for a task; the error says how long it must be."""
        for task in self.tasks:
            seed, depth, record = next(self.prompts(task))
            length = min(self.lengths)
            try:
                task.build(tokenizer, length=length, seed=seed, depth=depth, record=record)
            except ValueError as error:
                raise LongspanError(f"{task.name} at {length:,} tokens: {error}") from error

    def rank(self, *, longest_first: bool = False) -> Rank:
        """The order of work.

        Short prompts come first, so that a table says something soon; a cluster takes the long ones first, so that
        it does not wait for one of them at the end. Methods under a time limit always go upwards, as what a long prompt
        takes is known from shorter ones.
        """

        def rank(cell: Cell, part: int) -> tuple[float, ...]:
            first = cell.measures[0]
            place = self.specs.index(first.spec)
            if longest_first:
                limited = self.max_full_seconds is not None and takes_all(first)
                return (first.length if limited else -first.length), place, part
            return part, first.length, place

        return rank


def read_data(tasks: Sequence[Task], data_dir: Path | None) -> dict[str, list[Record]]:
    """The records of the tasks that read a file, by task. It needs no model.

    Raises:
        DataError: there is no folder or file, or a line or field is not as the task needs it.
    """
    check_folder(data_dir)
    return {task.name: read_records(task, data_dir) for task in tasks if task.data is not None}


def drawn(total: int, samples: int | None, seed: int = 0) -> list[int]:
    """The records, of ``total``, in a cell of so many samples; None: all.

    They are drawn from all of them, as files are often sorted, and more samples only add to fewer.
    """
    return random.Random(seed).sample(range(total), total)[:samples]


def spread(depths: int) -> tuple[float, ...]:
    """So many depths, evenly from the start of a text to its end; the middle if it is one depth."""
    return (0.5,) if depths == 1 else tuple(n / (depths - 1) for n in range(depths))
