"""A method on one layer whose keys and values lie in pages."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.attend.tables import Tables
from longspan.kernels.banded import banded
from longspan.kernels.dispatch import Impl
from longspan.kernels.gathered import PerQueryChunk, gathered
from longspan.methods import Method
from longspan.rope import Rope
from longspan.vllm import pages
from longspan.vllm.step import FewTokens, Step


class PagedAttention:
    """One resolved method at one window, for all layers of a model.

    Args:
        method: a resolved method whose bands need one stored rotation of the keys.
        window: the trained window ``L``, in tokens.
        impl: which kernel runs; see ``longspan.kernels.dispatch``.
    """

    def __init__(self, method: Method, window: int, impl: Impl = "auto") -> None:
        self.tables, self.impl = Tables(method, window, None), impl

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
        own = self.tables.angles(rope.table)
        rope = rope.with_table(own)
        q, k, v, out = (x[: step.rows] for x in (q, k, v, out))
        rotated = rope.rotate_k(k.transpose(0, 1)[None], *step.key_cos_sin(own, q.device))[0].transpose(0, 1)
        pages.write(cache, rotated, v, step.slots)
        heads_first = q.transpose(0, 1)[None]
        for request, span in step.many:
            rows = slice(request.first, request.first + request.count)
            plan, angles = step.many_cos_sin(span, own, q.device)
            keys, values = pages.text_tokens(cache, request.pages.to(cache.device), plan.stop)
            whole, _ = banded(
                heads_first[:, :, rows], [keys] * len(plan.lo), values, plan, angles, rope, scale=scale,
                softcap=softcap, impl=self.impl,
            )  # fmt: skip
            out[rows] = whole[0].transpose(0, 1)
        few = step.few(pages.page_step(cache), q.device)
        if few is not None:
            job = self._job(heads_first, cache, step, few, rope, scale, softcap)
            rows_of = torch.arange(step.rows, device=q.device) if few.rows is None else few.rows
            for some, part, _ in gathered(job, self.impl):
                out[rows_of[some]] = part[0].transpose(0, 1)

    def _job(
        self, q: Tensor, cache: Tensor, step: Step, few: FewTokens, rope: Rope, scale: float, softcap: float | None
    ) -> PerQueryChunk:
        """Each token is a query chunk of its own, which sees the keys of its bands, one run a band."""
        keys, values = pages.all_tokens(cache)
        count = few.tokens.shape[1]
        alone = count == 1
        return PerQueryChunk(
            q=q if few.rows is None else q[:, :, few.rows],
            keys=keys,
            v=values,
            rope=rope,
            scale=scale,
            softcap=softcap,
            tokens=few.tokens if alone else few.tokens[:, None],
            ends=few.ends if alone else few.ends[:, None],
            cos_sin=tuple(step.few_cos_sin(few, rope.table, q.device)),
            edges=None if alone else tuple(range(count + 1)),
        )
