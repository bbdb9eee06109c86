"""What the quality table asks: its rows, how many prompts each cell gets, and which come first."""

from __future__ import annotations

import argparse

from longspan.methods import METHODS
from longspan_eval.plan import Ask, Cell, schedule
from longspan_eval.results import Sample
from longspan_eval.rows import STOCK, Row, parse_rows
from longspan_eval.scored_passkey import plan_cell
from longspan_eval.subject import Subject
from longspan_eval.summary import Summary, summarise
from quality_bars import SELECTING

MULTIPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
FEATURED = ("longheads", "longheads:score=bounds", "esa")  # the paper's own, and the best settings: the most prompts
LEFT_OUT = ("full",)  # stock by another route, to the digit

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


def prompts_for(row: Row, multiple: float) -> int:
    """How many prompts a cell gets."""
    if row.label in FEATURED:
        return 200 if multiple <= 16 else 100
    if row.name in SELECTING:
        return 50 if multiple <= 16 else 10
    if row.name == "dca" and multiple == 4:
        return 200
    return 50 if multiple <= 8 else 10


def rank(cell: Cell, part: int) -> tuple[float, ...]:
    """The lowest is asked first: the window, what bars hang on, all else to 16x; what takes longest comes last."""
    name, multiple = cell.row.name, cell.multiple
    if name == STOCK and multiple == 1:
        return 0.0, multiple
    far = multiple > 16
    if far and cell.row.label not in FEATURED:
        return 4.0, multiple
    bar = (cell.row.label in FEATURED and multiple in (16, 64)) or (name == "dca" and multiple == 4)
    return 1.0 + part, 0 if bar else 2 if far else 1, multiple


class Quality:
    """The table: its cells, their baselines, and what has been measured of them."""

    def __init__(self, args: argparse.Namespace, subject: Subject) -> None:
        self.rows = parse_rows(args.rows or (list(GRID) if args.grid else default_rows()))
        self.multiples: tuple[float, ...] = args.lengths
        self.fillers: tuple[str, ...] = args.fillers
        self.subject = subject
        self.title = "grid" if args.grid else "quality"
        self.cells = [
            plan_cell(subject, row, multiple, filler, _prompts(args, row, multiple), seed=args.seed)
            for row in self.rows
            for multiple in self.multiples
            for filler in self.fillers
        ]
        most = max(len(cell.asks) for cell in self.cells)
        stock = Row(None)
        # The in-window prompt of every seed, its passkey before all of the text: what perplexity is measured against.
        self.baselines = {
            filler: plan_cell(subject, stock, 1, filler, most, seed=args.seed, depth=0.0) for filler in self.fillers
        }

    @property
    def every_cell(self) -> list[Cell]:
        return [*self.baselines.values(), *self.cells]

    def left(self, samples: dict[str, Sample], retry_errors: bool) -> list[list[Ask]]:
        """What is still to ask. A cell with an error is done, unless errors are to be tried again."""

        def done(cell: Cell) -> list[Ask]:
            have = [ask for ask in cell.asks if ask.key in samples]
            failed = [ask for ask in have if samples[ask.key].error is not None]
            if failed and not retry_errors:
                return list(cell.asks)
            return [ask for ask in have if ask not in failed]

        return schedule(self.every_cell, done, rank)

    def summaries(self, samples: dict[str, Sample]) -> dict[tuple[str, float, str], Summary]:
        return {
            (cell.row.label, cell.multiple, cell.filler): summarise(cell, samples, self.baselines[cell.filler])
            for cell in self.cells
        }


def _prompts(args: argparse.Namespace, row: Row, multiple: float) -> int:
    if args.prompts is not None:
        return int(args.prompts)
    return GRID_PROMPTS if args.grid else prompts_for(row, multiple)
