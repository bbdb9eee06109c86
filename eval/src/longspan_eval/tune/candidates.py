"""What ``longspan tune`` tries, most telling first."""

from __future__ import annotations

from collections.abc import Iterator

from longspan_eval.spec import MethodSpec, parse_spec

SMALLEST = 64  # tokens of a declared window


def candidates(window: int) -> tuple[MethodSpec, ...]:
    """The rows to try for a model with a trained window, none twice.

    Methods at all of the window, at a quarter and at half of it declared; LongHeads' chunk lengths at equal budgets,
    with local chunks that hold equally many tokens; ESA's shares; budgets of all and a quarter of the window.
    """
    rows = (parse_spec(text) for text in _texts(window))
    return tuple({row.label: row for row in rows}.values())


def _texts(window: int) -> Iterator[str]:
    quarter, half = (f"declared={window // n}" for n in (4, 2))
    eighth = max(window // 8, 1)
    yield "esa:share=group"
    yield "dca"
    yield _longheads(16, window)
    yield _longheads(8, window)
    if window // 4 >= SMALLEST:
        yield f"esa:share=group,{quarter}"
        yield f"dca:{quarter}"
        yield f"{_longheads(16, window // 4)},{quarter}"
    yield "self-extend"
    yield f"esa:share=group,local={eighth},top_k={eighth},query_chunk={max(window // 32, 1)}"
    yield _longheads(16, window // 4)
    if window // 2 >= SMALLEST:
        yield f"esa:share=group,{half}"
        yield f"dca:{half}"
        yield f"{_longheads(16, window // 2)},{half}"
    yield "esa"
    yield _longheads(32, window)
    yield "longheads:score=bounds"
    yield _longheads(16, window, score="mean")
    yield "rerope"
    yield "yarn"


def _longheads(chunk: int, budget: int, score: str = "bounds") -> str:
    """LongHeads with chunks of a length, of which an eighth of the budget is local."""
    count, local = max(budget // chunk, 1), max(budget // 8 // chunk, 1)
    return f"longheads:chunk_length={chunk},num_chunks={count},local_chunks={local},score={score}"
