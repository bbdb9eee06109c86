"""Two texts through pages as an engine has them: cut into steps anywhere, pages in any order, poisoned where unused."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.paged.attention import PagedAttention
from longspan.paged.pages import NewTokens, Slots
from longspan.paged.step import FEW, Step
from support.cases import HEAD

# What each of two texts brings to a step: none, one token, a few, many, alone or mixed. The cuts lie anywhere in pages.
STEPS = [(20, 0), (1, 7), (1, 1), (FEW, 2), (31, 1), (1, 40), (0, 1), (20, 21), (1, 6), (0, 4)]
PAGES = 256


def poisoned(pages: int, heads: int, size: int, dtype: torch.dtype, room: int = 0) -> Tensor:
    """Pages of a layer, with room behind each for so many tokens of every key head."""
    page = torch.full((pages, heads * (size + room) * 2 * HEAD), float("nan"), dtype=dtype)
    return page[:, : heads * size * 2 * HEAD].unflatten(1, (heads, size, 2 * HEAD))


def paged(case, impl, inputs, extra, size=8, padding=3, steps=STEPS):
    """``[2, H, N, D]`` of two texts, step by step, and how many tokens of each; each step ends with rows of padding."""
    q, k, v, rope = inputs
    attention = PagedAttention(case.method, case.window, impl)
    cache = poisoned(PAGES, k.shape[1], size, q.dtype, room=int(case.selects))
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(1))
    tables = [order[: PAGES // 2], order[PAGES // 2 :]]
    out, past = torch.full_like(q, float("nan")), [0, 0]
    for counts in steps:
        requests, rows, first = [], [], 0
        for text, count in enumerate(counts):
            if count:
                pages = tables[text][: -(-(past[text] + count) // size)]
                requests.append(NewTokens(first, past[text], count, pages))
                rows.append(tables[text])
                first += count
        own = [(text, slice(past[text], past[text] + count)) for text, count in enumerate(counts) if count]
        i = [(tables[text], torch.arange(span.start, span.stop)) for text, span in own]
        mapping = torch.cat([table[j // size] * size + j % size for table, j in i])
        step = Step(attention.tables, requests, Slots.of(mapping, size), size, torch.stack(rows))
        rows = [torch.cat([x[t, :, s] for t, s in own], dim=1).transpose(0, 1) for x in (q, k, v)]
        rows = [torch.cat((x, torch.full_like(x[:padding], 7.0))) for x in rows]
        result = torch.full_like(rows[0], 5.0)
        attention(*rows, cache, step, result, rope, scale=extra["scale"], softcap=extra["softcap"])
        assert (result[step.rows :] == 5).all(), "rows of padding are not written"
        for (text, span), request in zip(own, requests, strict=True):
            out[text, :, span] = result[request.first : request.first + request.count].transpose(0, 1)
            past[text] = span.stop
    return out, past
