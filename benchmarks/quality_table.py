"""The quality table: its cells, how many prompts each gets, and which come first."""

from __future__ import annotations

import argparse
import hashlib

from longspan.methods import METHODS
from longspan_eval import passkey
from longspan_eval.cell import Cell
from longspan_eval.filler import FillerName
from longspan_eval.measure import Measure, Prompt, key_of
from longspan_eval.reduce import count, ratio
from longspan_eval.schedule import Plan
from longspan_eval.spec import STOCK, MethodSpec, parse_specs
from longspan_eval.subject import Subject
from longspan_eval.task import Task
from longspan_eval.tasks.passkey import scored_passkey
from quality_bars import SELECTING

MULTIPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
FEATURED = ("longheads", "longheads:score=bounds", "esa")  # the paper's own, and the best settings: the most prompts
LEFT_OUT = ("full",)  # stock by another route, to the digit
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # in turn, so that any five prompts in a row have one of each
TARGETS = 256  # tokens at the end of the text whose loss is taken

# Rows beside every method with its defaults.
VARIANTS: tuple[str, ...] = (
    "longheads:share=head",
    "longheads:score=mean",
    "longheads:score=submeans",
    "longheads:score=bounds",
    "longheads:score=token_max",
    "longheads:score=token_max,share=head",
    "longheads:score=token_max,calibration=bundled",
    "esa:share=group",
    "esa:calibration=bundled",
)
# Selections against positions, at as many keys read for a token and key head: 96 or 264 that are kept anyway, the rest
# chosen, once for all who share and three times as few where each of a key head's three query heads chooses for itself.
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


def prompts_for(spec: MethodSpec, multiple: float) -> int:
    """How many prompts a cell gets."""
    if spec.label in FEATURED:
        return 200 if multiple <= 16 else 100
    if spec.name in SELECTING:
        return 50 if multiple <= 16 else 10
    if spec.name == "dca" and multiple == 4:
        return 200
    return 50 if multiple <= 8 else 10


def found_over(filler: str) -> str:
    """The name of a table."""
    return f"Passkeys found over {filler}"


def perplexity_of(filler: str) -> str:
    """The name of the table of perplexity, against the same tokens in the window."""
    return f"Perplexity of the last {TARGETS} tokens of {filler}"


class Quality:
    """The table: its cells, and what they are compared with.

    Attributes:
        plan: of passkeys found and of perplexity, by filler, method and length; and of the baselines, one a filler:
            the in-window prompt of every seed, its passkey before all of the text, read by the stock model.
    """

    def __init__(self, args: argparse.Namespace, subject: Subject) -> None:
        self.specs = parse_specs(args.rows or (list(GRID) if args.grid else default_rows()))
        self.multiples: tuple[float, ...] = args.lengths
        self.fillers: tuple[FillerName, ...] = args.fillers
        self.subject, self._seed = subject, args.seed
        self.title = "grid" if args.grid else "quality"
        self._tasks = {filler: scored_passkey(filler, TARGETS) for filler in self.fillers}
        counts = {(spec, n): _prompts(args, spec, n) for spec in self.specs for n in self.multiples}
        self._base = {
            filler: self._asked(MethodSpec(None), 1, task, max(counts.values()), depth=0.0)
            for filler, task in self._tasks.items()
        }
        self.plan = Plan([cell for filler in self.fillers for cell in self._cells(filler, counts)], self.key)

    def key(self, measure: Measure) -> str:
        """The key of a sample. The versions of what computes it are no part of it: see ``--forget``."""
        assert isinstance(measure, Prompt)
        file = measure.spec.calibration
        return key_of(
            {
                "task": passkey.NAME,
                "version": passkey.VERSION,
                "targets": TARGETS,
                "filler": measure.task.filler,
                "length": measure.length,
                "seed": measure.seed,
                "depth": measure.depth,
                "method": measure.spec.label,  # which has no parameter that is at its default
                "calibration": None if file is None else hashlib.sha256(file.read_bytes()).hexdigest(),
                "model": self.subject.sha256,
            }
        )

    def multiple(self, cell: Cell) -> float:
        """The length of a cell, in windows."""
        return cell.measures[0].length / self.subject.window

    def rank(self, cell: Cell, part: int) -> tuple[float, ...]:
        """The lowest is first: the window, what bars hang on, all else to 16x; what takes longest comes last."""
        spec, multiple = cell.measures[0].spec, self.multiple(cell)
        if spec.name == STOCK and multiple == 1:
            return 0.0, multiple
        far = multiple > 16
        if far and spec.label not in FEATURED:
            return 4.0, multiple
        bar = (spec.label in FEATURED and multiple in (16, 64)) or (spec.name == "dca" and multiple == 4)
        return 1.0 + part, 0 if bar else 2 if far else 1, multiple

    def _cells(self, filler: FillerName, counts: dict[tuple[MethodSpec, float], int]) -> list[Cell]:
        base = self._base[filler]
        cells = [Cell(STOCK, "1x", count, base, table=f"baseline over {filler}")]
        for (spec, multiple), n in counts.items():
            place, prompts = (spec.label, f"{multiple:g}x"), self._asked(spec, multiple, self._tasks[filler], n)
            cells.append(Cell(*place, count, prompts, table=found_over(filler)))
            cells.append(Cell(*place, ratio(TARGETS), prompts, base, table=perplexity_of(filler)))
        return cells

    def _asked(
        self, spec: MethodSpec, multiple: float, task: Task, prompts: int, depth: float | None = None
    ) -> tuple[Prompt, ...]:
        """Prompts at the depths of ``DEPTHS`` in turn, or all at one."""
        depths = [DEPTHS[n % len(DEPTHS)] if depth is None else depth for n in range(prompts)]
        length = round(multiple * self.subject.window)
        return tuple(Prompt(spec, length, self._seed + n, task=task, depth=where) for n, where in enumerate(depths))


def _prompts(args: argparse.Namespace, spec: MethodSpec, multiple: float) -> int:
    if args.prompts is not None:
        return int(args.prompts)
    return GRID_PROMPTS if args.grid else prompts_for(spec, multiple)
