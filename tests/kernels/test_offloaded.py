"""Keys in another memory than the queries: what was chosen is brought to these, a unit once for all rows."""

from dataclasses import replace

import pytest
import torch

from longspan.kernels import cpu
from longspan.kernels import gathered as kernels
from longspan.kernels.gathered import gather_into, gathered
from longspan.kernels.gathered.offloaded import brought, brought_chunk
from support.jobs import per_chunk, per_row

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.parametrize("share", [1, 2, 4])
@pytest.mark.parametrize(("rows", "size", "count"), [(1, 8, 3), (13, 8, 3), (13, 1, 5)])
@pytest.mark.parametrize("most", [1, 700, 1 << 28])
def test_attention_to_the_brought_units_is_that_to_all_stored_ones(share, rows, size, count, most):
    job = per_row(rows, size, count, available=17, share=share, batch=2)
    ((_, whole, whole_lse),) = gathered(job, "reference")
    outs, lses, at = [], [], 0
    for some, part in brought(job, most):
        assert some.start == at < some.stop
        ((_, out, lse),) = gathered(part, "reference")
        outs, lses, at = [*outs, out], [*lses, lse], some.stop
    assert at == rows
    assert (len(outs) == 1) == (rows == 1 or most > 700), "as many rows at a time as there is room for their units"
    torch.testing.assert_close(torch.cat(outs, dim=2), whole)
    torch.testing.assert_close(torch.cat(lses, dim=2), whole_lse, rtol=1e-12, atol=1e-12)


def test_a_unit_is_copied_once_for_all_rows_that_chose_it():
    job = per_row(50, 8, 3, available=5)
    ((_, part),) = brought(job)
    assert part.keys.shape[2] == 5 * 8 and part.units.max() == 4
    assert {x.device for x in (part.keys, part.v, part.units)} == {job.q.device}


@pytest.mark.parametrize("share", [1, 2, 4])
@pytest.mark.parametrize(
    "options", [{"runs": 1}, {"runs": 3}, {"rotated": True}, {"runs": 2, "edges": (0, 4, 9)}], ids=str
)
def test_attention_to_the_brought_tokens_is_that_to_all_stored_ones(share, options):
    job = per_chunk(9, 12, share=share, batch=2, **options)
    for _, chunk in job.chunks():
        part = brought_chunk(chunk)
        assert part.keys.shape[2] == part.v.shape[2] == 12
        ((_, whole, whole_lse),), ((_, out, lse),) = (gathered(one, "reference") for one in (chunk, part))
        torch.testing.assert_close(out, whole)
        torch.testing.assert_close(lse, whole_lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("impl", ["auto", "compiled", "torch"])
@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")
def test_every_implementation_sees_the_keys_where_the_queries_are(impl, monkeypatch):
    """A named one was refused for keys in another memory, which are brought before it runs."""
    rows, chunks = per_row(13, 8, 3, available=17), per_chunk(9, 12, runs=3, edges=(0, 4, 9))
    # There may be no GPU: keys without memory stand for those elsewhere, and the true ones are brought.
    monkeypatch.setattr(kernels, "brought", lambda _: brought(rows, most=700))
    monkeypatch.setattr(kernels, "brought_chunk", lambda one: brought_chunk(replace(one, keys=chunks.keys, v=chunks.v)))
    for job in (rows, chunks):
        out, lse = torch.zeros_like(job.q), torch.full(job.q.shape[:3], -torch.inf)
        gather_into(out, lse, replace(job, keys=job.keys.to("meta"), v=job.v.to("meta")), impl)
        parts = [(part, part_lse) for _, part, part_lse in gathered(job, "reference")]
        whole, whole_lse = (torch.cat(x, dim=2) for x in zip(*parts, strict=True))
        torch.testing.assert_close(out, whole)
        torch.testing.assert_close(lse.double(), whole_lse, rtol=1e-5, atol=1e-5)
