"""The quality table: its cells, how many prompts each gets, and which come first."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace

from longspan.methods import METHODS
from longspan_eval.cell import Cell
from longspan_eval.filler import FillerName
from longspan_eval.in_window import tasks_in_window
from longspan_eval.measure import Measure, TaskPrompt, key_of
from longspan_eval.reduce import count, found, ratio
from longspan_eval.schedule import CellPlan
from longspan_eval.spec import STOCK, MethodSpec, parse_specs
from longspan_eval.subject import Subject
from longspan_eval.task import Task
from longspan_eval.tasks import TASKS
from longspan_eval.tasks.passkey import PASSKEYS, scored_passkey
from longspan_eval.tasks.scores import line_complete

MULTIPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
# Each query of these reads a bounded number of keys; all others read the whole text and take quadratic time.
BOUNDED = ("streaming-llm", "lm-infinite", "infllm", "longheads", "esa")
LEFT_OUT = ("full",)  # stock by another route, to the digit
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # in turn, so that any five prompts in a row have one of each
TARGETS = 256  # tokens at the end of the text whose loss is taken

# Rows beside every method with its defaults.
VARIANTS: tuple[str, ...] = ("longheads:score=bounds", "longheads:score=token_max", "esa:calibration=bundled")
# Selections against positions, at as many keys read for a token and key head: 96 or 264 that are kept anyway, the rest
# chosen, once for all who share and three times as few if each of a key head's three query heads chooses for itself.
GRID: tuple[str, ...] = tuple(
    f"{selection},share={share},remap={remap}"
    for remap in ("slots", "far", "dca")
    for selection, share in (
        ("longheads:score=bounds,num_chunks=13", "layer"),
        ("longheads:score=bounds,num_chunks=13", "group"),
        ("longheads:score=bounds,num_chunks=6", "head"),
        ("esa:top_k=152", "layer"),
        ("esa:top_k=152", "group"),
        ("esa:top_k=51", "head"),
    )
)
GRID_MULTIPLES, GRID_PROMPTS = (8.0, 16.0), 50


def default_rows() -> list[str]:
    """Stock, every method with its defaults, and the variants."""
    return [STOCK, *(name for name in METHODS if name not in LEFT_OUT), *VARIANTS]


def default_tasks() -> tuple[str, ...]:
    """What the model can do in its window by its card, beside pass keys, which have tables of their own."""
    return tuple(task.name for task in tasks_in_window() if task not in PASSKEYS)


def prompts_for(spec: MethodSpec, multiple: float) -> int:
    """How many prompts a cell gets."""
    if multiple <= 16:
        return 100
    return 50 if spec.name in BOUNDED else 10


def found_over(filler: str) -> str:
    """The name of a table."""
    return f"Passkeys found over {filler}"


def perplexity_of(filler: str) -> str:
    """The name of the table of perplexity, against the same tokens in the window."""
    return f"Perplexity of the last {TARGETS} tokens of {filler}"


class Quality:
    """The table: its cells, and what they are compared with.

    Attributes:
        tasks: those asked beside pass keys.
        plan: of passkeys found and of perplexity, by filler, method and length; of the baselines, one a filler: the
            in-window prompt of every seed, its passkey before all of the text, read by the stock model; and of the
            scores of every other task, by method and length.
    """

    def __init__(self, args: argparse.Namespace, subject: Subject) -> None:
        self.specs = parse_specs(args.rows or (list(GRID) if args.grid else default_rows()))
        self.multiples: tuple[float, ...] = args.lengths
        self.fillers: tuple[FillerName, ...] = args.fillers
        names = () if args.grid else default_tasks() if args.tasks is None else args.tasks
        # An answer is one line: the many tokens that a task grants to talkative models are not waited for.
        self.tasks = tuple(replace(TASKS[name], until=TASKS[name].until or line_complete) for name in names)
        self.subject, self._seed = subject, args.seed
        self.title = "grid" if args.grid else "quality"
        self._passkeys = {filler: scored_passkey(filler, TARGETS) for filler in self.fillers}
        counts = {(spec, n): _prompts(args, spec, n) for spec in self.specs for n in self.multiples}
        self._base = {
            filler: self._asked(MethodSpec(None), 1, task, max(counts.values()), depth=0.0)
            for filler, task in self._passkeys.items()
        }
        cells = [cell for filler in self.fillers for cell in self._cells(filler, counts)]
        cells += [cell for task in self.tasks for cell in self._cells_of(task, counts)]
        self.plan = CellPlan(cells, self.key)

    def key(self, measure: Measure) -> str:
        """The key of a sample. The versions of what computes it are no part of it: see ``--forget``."""
        assert isinstance(measure, TaskPrompt)
        task, spec, file = measure.task, measure.spec, measure.spec.calibration
        made_from = {
            "version": task.version,
            "targets": TARGETS if task.filler else None,
            "calibration": None if file is None else hashlib.sha256(file.read_bytes()).hexdigest(),
            "model": self.subject.sha256,
        }
        # Words that the sample has too compress to nothing; a hash does not, and would be half of the archives. A label
        # has no parameter that is at its default.
        place = (task.name, task.filler, measure.length, measure.seed, measure.depth, spec.label)
        return "|".join(map(str, (*place, key_of(made_from)[:16])))

    def multiple(self, cell: Cell) -> float:
        """The length of a cell, in windows."""
        return cell.measures[0].length / self.subject.window

    def rank(self, cell: Cell, part: int) -> tuple[float, ...]:
        """The lowest is first: the window, then to 16x, then beyond; each at first with few prompts."""
        multiple = self.multiple(cell)
        if cell.row == STOCK and multiple == 1:
            return 0.0, part
        return (1.0 if multiple <= 16 else 2.0), part, multiple

    def _cells(self, filler: FillerName, counts: dict[tuple[MethodSpec, float], int]) -> list[Cell]:
        base = self._base[filler]
        cells = [Cell(STOCK, "1x", count, base, table=f"baseline over {filler}")]
        for (spec, multiple), n in counts.items():
            place, prompts = (spec.label, f"{multiple:g}x"), self._asked(spec, multiple, self._passkeys[filler], n)
            cells.append(Cell(*place, count, prompts, table=found_over(filler)))
            cells.append(Cell(*place, ratio(TARGETS), prompts, base, table=perplexity_of(filler)))
        return cells

    def _cells_of(self, task: Task, counts: dict[tuple[MethodSpec, float], int]) -> list[Cell]:
        return [
            Cell(spec.label, f"{multiple:g}x", found, self._asked(spec, multiple, task, n), table=task.name)
            for (spec, multiple), n in counts.items()
        ]

    def _asked(
        self, spec: MethodSpec, multiple: float, task: Task, prompts: int, depth: float | None = None
    ) -> tuple[TaskPrompt, ...]:
        """Prompts at the depths of ``DEPTHS`` in turn, or all at one; a task without depths leaves them to the seed."""
        length, own = round(multiple * self.subject.window), DEPTHS if depth is None else (depth,)
        depths = [own[n % len(own)] if task.at_depths else None for n in range(prompts)]
        return tuple(TaskPrompt(spec, length, self._seed + n, task=task, depth=where) for n, where in enumerate(depths))


def _prompts(args: argparse.Namespace, spec: MethodSpec, multiple: float) -> int:
    if args.prompts is not None:
        return int(args.prompts)
    return GRID_PROMPTS if args.grid else prompts_for(spec, multiple)
