"""What is measured on real models: rows, texts and lengths, most telling first; and what the samples come to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Any

from longspan_eval.figure import wilson
from longspan_eval.interval import half_width
from longspan_eval.reading import PlantedReading
from longspan_eval.sample import Sample, finite
from longspan_eval.spec import STOCK, parse_spec
from planted import Kind, Texts

CUT = "stock, the window's end alone"


@dataclass(frozen=True)
class Block:
    """Rows that are measured on the same texts.

    Attributes:
        kind: of texts.
        window: declared, in tokens.
        length: of a text with a question and its answer, in tokens.
        first, stop: the numbers of the texts, the first and the one after the last.
    """

    kind: Kind
    window: int
    length: int
    first: int
    stop: int
    rows: tuple[str, ...]

    def readings(self, texts: Texts) -> Iterator[PlantedReading]:
        """Every row's first text before any row's second."""
        for number in range(self.first, self.stop):
            for row in self.rows:
                spec, cut = parse_spec(STOCK if row == CUT else row), row == CUT
                yield PlantedReading(
                    spec, self.length, number, kind=self.kind, window=self.window, cut=cut, texts=texts
                )


def chunks(length: int, count: int, *scores: str, local: int = 2) -> tuple[str, ...]:
    """LongHeads at a chunk length, a number of chunks and one of local chunks, by each score."""
    sizes = f"chunk_length={length},num_chunks={count}{'' if local == 2 else f',local_chunks={local}'}"
    return tuple(parse_spec(f"longheads:{sizes},score={score}").label for score in scores)


MAIN = (
    STOCK, CUT, "dca", "esa", "longheads", "longheads:score=bounds", *chunks(16, 64, "representation", "bounds"),
)  # fmt: skip
SHARES = ("esa:share=group", "esa:local=256,top_k=640,share=group", *chunks(16, 64, "bounds", local=8))
SIZES = (  # as many tokens kept and local as LongHeads' own 64 x 16
    *chunks(32, 32, "bounds", local=4), *chunks(8, 128, "bounds", local=16),
    *chunks(16, 64, "mean", "representation", local=8),
)  # fmt: skip
REMAPS = tuple(
    parse_spec(f"{row},remap={remap}").label
    for row in (*chunks(16, 64, "bounds", local=8), *chunks(8, 128, "bounds", local=16))
    for remap in ("far", "dca")
)
OTHERS = ("infllm", "self-extend", "yarn")
REST = (
    "rerope", "streaming-llm", "lm-infinite", "esa:share=head", *chunks(16, 64, "mean"),
    *chunks(32, 32, "representation", "bounds"), *chunks(8, 128, "representation", "bounds"),
)  # fmt: skip
HUNDRED = (  # facts of each: ten texts
    STOCK, CUT, "dca", "esa", "esa:share=group", "longheads", "longheads:score=bounds", "self-extend",
    *chunks(8, 128, "bounds", local=16), *chunks(16, 64, "bounds", local=8),
)  # fmt: skip
FAR = ("dca", "esa", "longheads", "longheads:score=bounds")
WINDOWS = {"smollm2": 8192, "qwen2.5-coder": 32_768}  # the true ones
BLOCKS: Mapping[str, tuple[Block, ...]] = {
    "smollm2": (
        *(Block("facts", 1024, 4096, 0, 6, rows) for rows in (MAIN, SHARES, SIZES, OTHERS)),
        Block(
            "facts", 8192, 16_384, 0, 2,
            (*FAR, "esa:share=group", "longheads:chunk_length=16,score=bounds", STOCK, "yarn",
             "esa:local=1024,top_k=1024,query_chunk=256", *chunks(16, 512, "bounds", local=8),
             *chunks(16, 128, "bounds", local=8)),
        ),
        Block("facts", 8192, 16_384, 2, 5, (*FAR, "esa:share=group", "longheads:chunk_length=16,score=bounds", "yarn")),
        Block("facts", 1024, 4096, 0, 6, REMAPS),
        Block("facts", 2048, 16_384, 0, 2, (*FAR, "esa:share=group", *chunks(16, 128, "bounds", local=8))),
        Block("facts", 1024, 4096, 6, 10, HUNDRED),
        *(Block(kind, 1024, 4096, 0, 4, (*MAIN, *SHARES)) for kind in ("keys in noise", "keys in essays")),
        Block("facts", 1024, 4096, 0, 6, REST),
        Block("facts", 1024, 4096, 6, 10, (*MAIN, *SHARES, *SIZES, *OTHERS, *REST)),
        Block("facts", 2048, 8192, 0, 6, (*MAIN, *SHARES)),
        Block("pass key in noise", 1024, 4096, 0, 10, (STOCK, *FAR, "infllm", "streaming-llm")),
    ),
    "qwen2.5-coder": (
        Block("facts", 1024, 4096, 0, 3, (*MAIN, *SHARES)),
        Block("facts", 1024, 16_384, 0, 3, (STOCK, *FAR, *SHARES, *chunks(16, 64, "representation"))),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """What the samples of a row on one kind of text, at one window and length, come to.

    Attributes:
        texts: how many.
        asked, found: questions, and those answered right; ``interval`` is Wilson's of their ratio.
        ceiling: found by the row of ``base_of`` on the same texts.
        ratio: of perplexities, over that row's on the same texts; ``ratio_interval`` is Student's over texts.
        compared: texts that the ratio is over.
        tokens: of all texts, and ``read``: seconds of one core for a token, the median over texts.
    """

    model: str
    kind: str
    window: int
    length: int
    row: str
    texts: int
    asked: int
    found: int
    interval: tuple[float, float]
    ceiling: int | None
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    perplexity: float | None
    compared: int
    read: float
    error: str | None = None


Place = tuple[str, str, int, int]


def summaries(samples: Mapping[str, Sample]) -> list[Summary]:
    """Those of all rows, each model, kind, window and length in turn."""
    rows: dict[Place, dict[str, dict[int, Sample]]] = defaultdict(lambda: defaultdict(dict))
    for key, sample in samples.items():
        kind, window, length, number, row, model = parts(key)
        rows[model, kind, window, length][row][number] = sample
    return [
        _summary(place, row, own, by_row.get(base_of(place[0], place[3]), {}))
        for place, by_row in sorted(rows.items())
        for row, own in by_row.items()
    ]


def base_of(model: str, length: int) -> str:
    """The row that others are compared with: the stock model if it sees all of a text in its true window, or DCA."""
    return STOCK if length <= WINDOWS.get(model, length) else "dca"


def key(reading: PlantedReading, model: str) -> str:
    """The key of a sample: what it depends on, in words, and the model with the version of the readings."""
    row = CUT if reading.cut else reading.spec.label
    return "|".join(map(str, (reading.kind, reading.window, reading.length, reading.seed, row, model)))


def parts(key: str) -> tuple[str, int, int, int, str, str]:
    """Kind, window, length, number, row and model of a key."""
    kind, window, length, number, row, model = key.split("|")
    return kind, int(window), int(length), int(number), row, model


def _summary(place: Place, row: str, own: Mapping[int, Sample], base: Mapping[int, Sample]) -> Summary:
    failed = next((one.error for one in own.values() if one.error), None)
    good = {number: one for number, one in own.items() if one.error is None}
    asked, found = _asked(good.values()), _found(good.values())
    both = [number for number in good if number in base]
    logs = [good[n].loss - base[n].loss for n in both if good[n].scored and base[n].scored]
    losses = [one.loss for one in good.values() if one.scored]
    mean = fmean(logs) if logs else math.nan
    half = half_width(logs) if len(logs) > 1 else math.nan
    return Summary(
        *place,
        row,
        len(good),
        asked,
        found,
        wilson(found, asked),
        _found(base[n] for n in both) if len(both) == len(good) else None,
        math.exp(mean) if logs else None,
        (math.exp(mean - half), math.exp(mean + half)) if len(logs) > 1 else None,
        math.exp(fmean(losses)) if losses else None,
        len(logs),
        median(one.figures["read_cpu"] / one.tokens for one in good.values()) if good else math.nan,
        failed,
    )


def _asked(samples: Iterable[Sample]) -> int:
    return sum(round(one.figures["asked"]) for one in samples)


def _found(samples: Iterable[Sample]) -> int:
    return sum(round(value) for one in samples for name, value in one.figures.items() if name.startswith("found"))


def as_json(summary: Summary) -> dict[str, Any]:
    """A summary as JSON has it: numbers in five digits, and none that is not there."""
    body = finite({name: _short(value) for name, value in vars(summary).items()})
    return {name: value for name, value in body.items() if value is not None}


def from_json(body: Mapping[str, Any]) -> Summary:
    """The summary of ``as_json``."""
    pairs = {name: tuple(value) for name, value in body.items() if isinstance(value, list)}
    return Summary(**{**{one.name: None for one in fields(Summary)}, "read": math.nan, **body, **pairs})


def _short(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_short(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
