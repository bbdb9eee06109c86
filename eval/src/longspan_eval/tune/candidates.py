"""What ``longspan tune`` tries, most telling first."""

from __future__ import annotations

from collections.abc import Iterator

from longspan_eval.spec import MethodSpec, parse_spec

SMALLEST = 64  # tokens of a declared window
FEWEST = 4  # chunks that LongHeads keeps


def candidates(window: int) -> tuple[MethodSpec, ...]:
    """The rows to try for a model with a trained window, none twice.

    Methods at all of the window, at a quarter and at half of it declared; LongHeads' chunk lengths at equal budgets,
    with local chunks that hold equally many tokens; ESA's shares; budgets of all and a quarter of the window.
    """
    rows = (parse_spec(text) for text in _texts(window))
    return tuple({row.label: row for row in rows}.values())


def _texts(window: int) -> Iterator[str]:
    yield from ("esa:share=group", "dca")
    yield from _longheads(16, window)
    yield from _longheads(8, window)
    yield from _declared(window // 4)
    yield "self-extend"
    eighth = max(window // 8, 1)
    yield f"esa:share=group,local={eighth},top_k={eighth},query_chunk={max(window // 32, 1)}"
    yield from _longheads(16, window // 4)
    yield from _declared(window // 2)
    yield "esa"
    yield from _longheads(32, window)
    yield "longheads:score=bounds"
    yield from _longheads(16, window, score="mean")
    yield from ("rerope", "yarn")


def _declared(window: int) -> Iterator[str]:
    if window >= SMALLEST:
        yield f"esa:share=group,declared={window}"
        yield f"dca:declared={window}"
        yield from (f"{text},declared={window}" for text in _longheads(16, window))


def _longheads(chunk: int, budget: int, score: str = "bounds") -> Iterator[str]:
    """LongHeads with chunks of a length, of which an eighth of the budget is local; none if the budget has too few."""
    count, local = budget // chunk, max(budget // 8 // chunk, 1)
    if count >= FEWEST:
        yield f"longheads:chunk_length={chunk},num_chunks={count},local_chunks={local},score={score}"
