"""Pictures of methods as SVG: which keys each query keeps, at which relative position, and how fast channels rotate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from longspan import oracle
from longspan.methods import METHODS, Method
from longspan.rope import Rope, Table

WINDOW, TOKENS = 12, 32
CELL, LEFT, TOP = 18, 30, 24
HEAD, BASE = 16, 10_000.0
REACH = 4  # windows, for angles that follow the length
# Parameters that suit a window of 12 tokens, where the defaults would show too little.
OPTIONS: dict[str, dict[str, int]] = {
    "streaming-llm": {"sinks": 3, "recent": 8},
    "lm-infinite": {"sinks": 3, "recent": 8, "cap": 8},
    "string": {"shift": 8, "local": 2},
    "longheads": {"chunk_length": 2, "num_chunks": 5},
    "esa": {"initial": 2, "local": 4, "top_k": 3, "query_chunk": 3},
    "infllm": {"initial": 2, "local": 4, "block": 2, "blocks": 2, "representatives": 1, "query_chunk": 2},
}


@dataclass(frozen=True)
class Layout:
    """What a picture shows.

    Attributes:
        method: resolved for a window of ``WINDOW`` tokens.
        keep, chosen: ``[T, T]`` bool: the keys of each query, and those among them that were chosen by their scores.
        rel: ``[T, T]`` int64, the relative positions.
    """

    method: Method
    keep: Tensor
    chosen: Tensor
    rel: Tensor


def layout(name: str) -> Layout:
    """A method's ``keep`` and ``rel`` over ``TOKENS`` tokens; random queries and keys decide what is chosen."""
    method = METHODS[name](**OPTIONS.get(name, {})).resolve(WINDOW)
    if method.selects:
        return _chosen(method)
    i, j = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)[None, :]
    keep = method.selection(WINDOW).keep(i, j) & (j <= i)
    return Layout(method, keep, torch.zeros_like(keep), method.positions(WINDOW).rel(i, j).expand_as(keep))


def _chosen(method: Method) -> Layout:
    """The same by the oracle, for one head."""
    values = method.parameters()
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, TOKENS, HEAD, generator=generator) for _ in range(3))
    rope = Rope(Table(_frequencies()), HEAD)
    if method.name == "longheads":
        shape = {"dense_queries": WINDOW, "length": values["chunk_length"], "local": values["local_chunks"]}
        scores = oracle.chunk_scores(q, k, v, rope, scale=HEAD**-0.5, length=shape["length"], score="bounds")
        chunks = oracle.topk_chunks(scores, count=values["num_chunks"], **shape)
        keep, rel = (x[0, 0] for x in oracle.slots(chunks, **shape))
        took = [(i, c) for i in range(WINDOW, TOKENS) for c in chunks[0, 0, i].tolist()]
        size = shape["length"]
        return Layout(method, keep, _marked((i, c * size + n) for i, c in took for n in range(size)), rel)
    cuts = [*range(0, TOKENS, values["query_chunk"]), TOKENS]
    pieces = [(a, z) for a, z in pairwise(cuts) if a >= WINDOW]
    shape = {"initial": values["initial"], "local": values["local"]}
    if method.name == "esa":
        own = oracle.topk_tokens(oracle.token_scores(q, k), pieces, top_k=values["top_k"], **shape)
    elif method.name == "infllm":
        inside = [(a, z) for a, z in pairwise(cuts) if a < WINDOW]
        block = {name: values[name] for name in ("block", "blocks", "representatives")}
        own = oracle.topk_blocks(q, k, rope, [*inside, *pieces], dense_queries=WINDOW, **block, **shape)
    else:
        raise ValueError(f"{method.name} chooses keys, and pictures.py does not say how the oracle does it")
    keep, rel = (x[0, 0] for x in oracle.far_and_near(own, pieces, TOKENS, far=values["far"], **shape))
    took = [(i, j) for p, (a, z) in enumerate(pieces) for i in range(a, z) for j in own[0, 0, p].tolist()]
    return Layout(method, keep, _marked(took), rel)


def _marked(pairs: object) -> Tensor:
    marked = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    for i, j in pairs:  # type: ignore[attr-defined]
        marked[i, j] = True
    return marked


def _frequencies() -> Tensor:
    return BASE ** (-torch.arange(0, HEAD, 2) / HEAD)


def draw(shown: Layout) -> str:
    """A layout as one SVG element: a cell for each query and key it keeps, with its relative position."""
    side = TOKENS * CELL
    parts = [
        f'<svg class="positions" viewBox="0 0 {LEFT + side + 4} {TOP + side + 4}" role="img" '
        f'aria-label="Relative positions of {shown.method.name}">',
        f'<text x="{LEFT}" y="14">key →</text>',
        f'<text transform="translate(16 {TOP}) rotate(90)">query →</text>',
    ]
    for n in range(0, TOKENS, 4):
        parts.append(f'<text class="tick" x="{LEFT + n * CELL + CELL / 2:g}" y="{TOP - 3}">{n if n > 3 else ""}</text>')
    for i in range(TOKENS):
        for j in range(i + 1):
            x, y = LEFT + j * CELL, TOP + i * CELL
            if not shown.keep[i, j]:
                parts.append(f'<rect class="left-out" x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}"/>')
                continue
            rel, chosen = int(shown.rel[i, j]), bool(shown.chosen[i, j])
            level = f"r{rel * 8 // WINDOW}" if rel < WINDOW else "beyond"
            what = f"query {i}, key {j}: seen at {rel}, true distance {i - j}" + (", chosen" if chosen else "")
            parts.append(
                f'<g class="{level}{" chosen" if chosen else ""}"><title>{what}</title>'
                f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}"/>'
                f'<text x="{x + CELL / 2 - 0.5:g}" y="{y + 12.5:g}">{rel}</text></g>'
            )
    return "".join([*parts, "</svg>"])


def slowed(method: Method) -> list[float]:
    """By how much scaled angles slow each pair of channels of a head of 64, over ``REACH`` windows of 4,096."""
    own = BASE ** (-torch.arange(0, 64, 2) / 64)
    window = 4096
    scaled = method.resolve(window).angles.table(Table(own), window, REACH * window)
    return (own / scaled.inv_freq).tolist()


def draw_slowed(factors: Sequence[float]) -> str:
    """One bar for each pair of channels, the fastest first."""
    wide, high, left, top = 16, 130, 40, 12
    most = max(*factors, 1.0)
    parts = [
        f'<svg class="slowed" viewBox="0 0 {left + wide * len(factors) + 8} {top + high + 34}" role="img" '
        'aria-label="By how much each pair of channels is slowed">'
    ]
    for value in (1.0, most):
        y = top + high - high * value / most
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}×</text>')
        parts.append(f'<line x1="{left}" x2="{left + wide * len(factors)}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for n, factor in enumerate(factors):
        tall = high * factor / most
        parts.append(
            f"<g><title>pair {n}: rotates {factor:.3g} times as slowly</title>"
            f'<rect x="{left + n * wide + 1}" y="{top + high - tall:.1f}" width="{wide - 2}" height="{tall:.1f}"/></g>'
        )
    parts.append(f'<text x="{left}" y="{top + high + 22}">pairs of channels, the fastest first →</text>')
    return "".join([*parts, "</svg>"])
