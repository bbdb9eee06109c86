"""What ``longspan eval`` measures: tasks by rows by lengths, each cell's prompts, and the keys of their samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

import longspan
from longspan.errors import LongspanError
from longspan.methods import Method
from longspan_eval.datafile import read_records
from longspan_eval.estimate import Pace, duration
from longspan_eval.plan import Ask, Cell, digest, drawn, key_of, schedule
from longspan_eval.results import Sample
from longspan_eval.rows import STOCK, Row
from longspan_eval.subject import Subject
from longspan_eval.task import Record, Task
from longspan_eval.windows import PERPLEXITY, Windows

FULL = (STOCK, "full")  # the rows that --max-full-seconds is about: the control of an experiment, and its dearest part
SKIPPED = "skipped"  # how the error of a cell begins that was not worth its time


@dataclass(frozen=True)
class Study:
    """Tasks by rows by lengths.

    Attributes:
        tasks, rows: stock is put in front of the rows where it is missing, so that no figure stands by itself.
        lengths: tokens of prompt and answer.
        samples: prompts a cell; of a task from a file at most as many as it has records.
        depths: with it each cell's tasks that know depths get so many prompts at each of that many, evenly from the
            start of the text to its end.
        seed: the first prompt's.
        data_dir: where the files of tasks lie.
        windows: those that ``perplexity`` reads.
        max_full_seconds: cells of rows in ``FULL`` whose prompts take longer are marked instead of measured.
    """

    tasks: tuple[Task, ...]
    rows: tuple[Row, ...]
    lengths: tuple[int, ...]
    samples: int = 50
    depths: int | None = None
    seed: int = 0
    data_dir: Path | None = None
    max_full_seconds: float | None = None
    windows: Windows | None = None

    def __post_init__(self) -> None:
        given: dict[str, list[Any]] = {"task": [task.name for task in self.tasks], "length": list(self.lengths)}
        for what, values in given.items():
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
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise LongspanError(f"{self.data_dir}: there is no such folder; it is to hold the tasks' data files")
        if (self.windows is None) != (PERPLEXITY not in self.tasks):
            raise LongspanError(f"windows are for the task {PERPLEXITY.name}, which cannot do without")
        if self.max_full_seconds is not None and not self.max_full_seconds > 0:
            raise LongspanError(f"max_full_seconds must be above 0, not {self.max_full_seconds:g}")
        if all(row.name != STOCK for row in self.rows):
            object.__setattr__(self, "rows", (Row(None), *self.rows))

    def depths_of(self, task: Task) -> tuple[float | None, ...]:
        """The depths that a task is asked at; None leaves one to its seed."""
        if self.depths is None or not task.at_depths:
            return (None,)
        return spread(self.depths)

    @cached_property
    def records(self) -> Mapping[str, Sequence[Record]]:
        """The records of each task that is not made; raises LongspanError where a file cannot be read."""
        found = {task.name: read_records(task, self.data_dir) for task in self.tasks if task.data is not None}
        return found if self.windows is None else {**found, PERPLEXITY.name: list(self.windows.records)}

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

    def plan(self, subject: Subject, device: str = "cpu", window: int | None = None) -> list[Cell]:
        """Every cell, by task, row and length.

        Args:
            device: its type; samples of another are measured anew.
            window: the trained one, where it is not the config's.
        """
        return [
            self._cell(subject, task, row, length, device, window)
            for task in self.tasks
            for row in self.rows
            for length in self.lengths
        ]

    def _cell(self, subject: Subject, task: Task, row: Row, length: int, device: str, window: int | None) -> Cell:
        parameters = row.parameters(subject.window, length)
        common = {
            "task": task.name,
            "version": task.version,
            "new_tokens": task.new_tokens,
            "length": length,
            "method": row.name,
            "parameters": parameters,
            "model": subject.sha256,
            "tokenizer": subject.tokenizer_sha256,
            "window": subject.window,
            "device": device,
            "versions": versions(),  # a table never mixes samples of two
        }
        asks = []
        for seed, depth, record in self.prompts(task):
            what = {**common, "seed": seed, "depth": depth, "record": None if record is None else digest(record)}
            asks.append(Ask(row, task, length, seed, depth, key_of(what), record=record, window=window))
        return Cell(row, task, length / subject.window, length, "", parameters, tuple(asks))

    def check(self, tokenizer: Any) -> None:
        """Raise LongspanError if the shortest length is too short for a task; the error says how long it must be."""
        for task in self.tasks:
            seed, depth, record = next(self.prompts(task))
            length = min(self.lengths)
            try:
                task.build(tokenizer, length=length, seed=seed, depth=depth, record=record)
            except ValueError as error:
                raise LongspanError(f"{task.name} at {length:,} tokens: {error}") from error

    def left(
        self, cells: Sequence[Cell], samples: Mapping[str, Sample], *, retry_errors: bool, longest_first: bool
    ) -> list[list[Ask]]:
        """What is still to ask. A cell with an error is done, unless errors are to be tried again.

        Short prompts come first, so that a table says something soon; a cluster takes the long ones first, so that
        it does not wait for one of them at the end. Rows under a time limit always go upwards, as what a long prompt
        takes is known from shorter ones.
        """

        def done(cell: Cell) -> list[Ask]:
            if self.skipped(cell, samples) is not None:
                return list(cell.asks)
            have = [ask for ask in cell.asks if ask.key in samples]
            failed = [ask for ask in have if samples[ask.key].error is not None]
            if failed and not retry_errors:
                return list(cell.asks)
            return [ask for ask in have if samples[ask.key].error is None]

        def rank(cell: Cell, part: int) -> tuple[float, ...]:
            row = self.rows.index(cell.row)
            limited = self.max_full_seconds is not None and cell.row.name in FULL
            if longest_first:
                return (cell.length if limited else -cell.length), row, part
            return part, cell.length, row

        return schedule(cells, done, rank)

    def key_for(self, ask: Ask, sample: Sample) -> str:
        """Under which key to keep a sample; that a cell was skipped holds for this time limit alone."""
        return self._skip_key(ask) if _is_skipped(sample) else ask.key

    def skipped(self, cell: Cell, samples: Mapping[str, Sample]) -> str | None:
        """Why a cell was not measured for its time, or None."""
        if self.max_full_seconds is None or cell.row.name not in FULL:
            return None
        if all(ask.key in samples for ask in cell.asks):
            return None  # measured under a wider limit
        kept = (samples.get(self._skip_key(ask)) for ask in cell.asks)
        return next((sample.error for sample in kept if sample is not None), None)

    def too_long(self, pace: Pace, ask: Ask) -> str | None:
        """Why a prompt is not worth its time, from what its row took so far; None if it is, or nobody knows."""
        return over_limit(pace, ask, self.max_full_seconds)

    def _skip_key(self, ask: Ask) -> str:
        return f"{ask.key}-over-{self.max_full_seconds:g}"


def over_limit(pace: Pace, ask: Ask, limit: float | None) -> str | None:
    """Why a prompt of a row in ``FULL`` is not worth its time, or None; ``limit`` in seconds, None for no end."""
    if limit is None or ask.row.name not in FULL:
        return None
    seconds = pace.of_row(ask)
    if seconds is None or seconds <= limit:
        return None
    return f"{SKIPPED}: a prompt takes about {duration(seconds)}, more than --max-full-seconds {limit:g}"


def pace_of(subject: Subject, cells: Sequence[Cell], samples: Mapping[str, Sample]) -> Pace:
    """How long prompts take, from what has been measured of these cells."""
    pace = Pace(subject.crossover, lambda ask: _bounded(ask.row.method, subject.window))
    for cell in cells:
        for ask in cell.asks:
            if ask.key in samples:
                pace.add(ask, samples[ask.key])
    return pace


def _bounded(method: Method | None, window: int) -> bool:
    """Whether a query attends to a fixed number of keys, however long the text."""
    try:
        return method is not None and method.resolve(window).selection(window).budget is not None
    except ValueError:
        return False  # the parameters do not fit the window, which attaching the method says


def versions() -> dict[str, str]:
    """Of what computes a sample."""
    return {
        "longspan": longspan.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _is_skipped(sample: Sample) -> bool:
    return sample.error is not None and sample.error.startswith(f"{SKIPPED}:")


def spread(depths: int) -> tuple[float, ...]:
    """So many depths, evenly from the start of a text to its end; the middle where it is one."""
    return (0.5,) if depths == 1 else tuple(n / (depths - 1) for n in range(depths))
