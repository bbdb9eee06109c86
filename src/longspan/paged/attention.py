"""A method on one layer whose keys and values lie in pages."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import cast

import torch
from torch import Tensor

from longspan.attend.choosing import Chooser
from longspan.attend.state import TokenSpan
from longspan.attend.tables import Tables
from longspan.choosing.chunks import Chunks
from longspan.choosing.queries import QueryBlock
from longspan.kernels import cpu
from longspan.kernels.banded import banded
from longspan.kernels.dispatch import Impl, runs_in_c
from longspan.methods import Method
from longspan.paged import pages
from longspan.paged.chosen import PagedSelector, request_bounds
from longspan.paged.few import FewTokens
from longspan.paged.pages import NewTokens
from longspan.paged.step import Step
from longspan.rope import Rope


class PagedAttention:
    """One resolved method at one window, for all layers of a model.

    Args:
        method: a resolved method whose bands need one stored rotation of the keys.
        window: the trained window ``L``, in tokens.
        impl: which kernel runs; see ``longspan.kernels.dispatch``.

    Attributes:
        selection: which chunks queries choose by their bounds; None if they choose none.
    """

    def __init__(self, method: Method, window: int, impl: Impl = "auto") -> None:
        method.check_reach(window)
        self._chooser = Chooser(method, window, impl, None) if method.selects else None
        self.selection = None if self._chooser is None else cast(Chunks, self._chooser.selection)
        self.tables, self.impl = Tables(method, window, self._chooser), impl
        # Scores and choices of a named implementation in torch's operations are computed by those too.
        self._without_c = not runs_in_c(impl)

    @torch.no_grad()
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: Tensor,
        step: Step,
        out: Tensor,
        rope: Rope,
        *,
        scale: float,
        softcap: float | None = None,
    ) -> None:
        """Write the new keys and values to their pages, and attend.

        Args:
            q, k, v: ``[T, H, D]``, ``[T, Hkv, D]``, ``[T, Hkv, D]``, unrotated; the step's rows come first, and those
                after them are padding.
            cache: ``[pages, Hkv, size, 2D]``.
            out: ``[T, H, D]``, written for the step's rows.
        """
        with cpu.disabled() if self._without_c else nullcontext():
            q, k, v, out = (x[: step.rows] for x in (q, k, v, out))
            own = self.tables.angles(rope.table)
            rope = rope.with_table(own)
            rotated = rope.rotate_k(k.transpose(0, 1)[None], *step.key_cos_sin(own, q.device))[0].transpose(0, 1)
            pages.write(cache, rotated, v, step.slots)
            if self.selection is not None:
                step.updates(self.selection, cache.device).write(cache, k)
            heads_first = q.transpose(0, 1)[None]
            for request, span in step.many:
                rows = slice(request.first, request.first + request.count)
                part = self._many(heads_first[:, :, rows], cache, step, request, span, rope, scale, softcap)
                out[rows] = part[0].transpose(0, 1)
            few = step.few(cache.device)
            if few is not None:
                self._few(few, q, cache, out, rope, scale, softcap)

    def reserve(self, q: Tensor, kv_heads: int, longest: int) -> None:
        """Take, and give back, the memory that a layer's longest text takes at most: for a run that measures it.

        Args:
            q: ``[T, H, D]``.
            longest: tokens of a text.
        """
        held = [q.new_empty(2, kv_heads, longest, q.shape[-1])]
        if self._chooser is not None and self.selection is not None:
            held.append(q.new_empty(2, kv_heads, self.selection.candidates(longest), q.shape[-1], dtype=torch.float32))
            held.append(q.new_empty(self._chooser.scores_at_once, dtype=torch.float32))
        del held

    def _many(
        self,
        q: Tensor,
        cache: Tensor,
        step: Step,
        request: NewTokens,
        span: TokenSpan,
        rope: Rope,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """``[1, H, T, D]`` of one request with many new tokens, whose keys are copied one after the other."""
        plan, angles = step.many_cos_sin(span, rope.table, q.device)
        keys, values = pages.text_tokens(cache, request.pages.to(cache.device), plan.stop)
        out, lse = banded(
            q, [keys] * len(plan.lo), values, plan, angles, rope, scale=scale, softcap=softcap, impl=self.impl
        )
        if self._chooser is not None and self.selection is not None and plan.stop > self.selection.first_query:
            queries = QueryBlock(
                q=q,
                keys=keys,
                values=values,
                scored=None,
                batch=slice(0, 1),
                start=plan.start,
                stop=plan.stop,
                rope=rope,
                scale=scale,
                softcap=softcap,
                layer=0,
                padding=0,
                table=partial(self._chooser.window_table, rope.table, q.device),
                shared=span.shared,
            )
            found = request_bounds(self.selection, cache, request.pages, plan.stop)
            self._chooser.add(out, lse, queries, PagedSelector(self.selection, *found))
        return out

    def _few(
        self,
        few: FewTokens,
        q: Tensor,
        cache: Tensor,
        out: Tensor,
        rope: Rope,
        scale: float,
        softcap: float | None,
    ) -> None:
        """The rows of requests with few new tokens, which read their keys in the pages, from ``q`` to ``out``."""
        own, (keys, values), plan = q[few.rows], pages.all_tokens(cache), few.plan
        part, lse = banded(
            own[:, :, None], [keys] * len(plan.lo), values, plan, few.angles(rope.table), rope,
            scale=scale, softcap=softcap, impl=self.impl, pages=few.pages(cache),
        )  # fmt: skip
        part, lse = part[:, :, 0], lse[:, :, 0]
        if few.choices is not None:
            of_rest, its_lse, asking = (x.transpose(0, 1)[None] for x in (part, lse, own))
            few.choices.add(of_rest, its_lse, asking, cache, rope, scale=scale, softcap=softcap, impl=self.impl)
        out[few.rows] = part
