"""What a decoding step makes on the host, and copies to the device, does not grow with the texts."""

from __future__ import annotations

import pytest
import torch

from longspan.kernels import cpu
from longspan.paged import attention as paged_attention
from longspan.paged import chosen
from longspan.paged.attention import PagedAttention
from longspan.paged.pages import NewTokens, Slots
from longspan.paged.step import Step
from support.cases import HEAD, ROPES, build
from support.host_bytes import HostBytes

SIZE, KV_HEADS, LENGTHS = 4, 1, (1024, 131_072)
CHOSEN = {"chunk_length": 4, "num_chunks": 5, "score": "bounds", "remap": "dca"}
CASES = {
    "dca": ("dca", {}),
    "streaming-llm": ("streaming-llm", {}),
    "string": ("string", {}),
    "full": ("full", {}),
    "yarn": ("yarn", {}),
    "longheads": ("longheads", CHOSEN),
}
META = torch.device("meta")


def decode(case, length, texts, count, cache, device):
    """The bytes of a step of ``count`` tokens of each of texts that share their pages."""
    attention, rope = PagedAttention(case.method, case.window), ROPES["half-all"]()
    table = torch.arange(length // SIZE, dtype=torch.int32).expand(texts, -1).to(device)
    q, k, v = (torch.ones(texts * count, heads, HEAD, device=device) for heads in (2, KV_HEADS, KV_HEADS))
    places = torch.zeros(texts * count, dtype=torch.int64, device=device)
    out = torch.empty_like(q)
    for _ in range(2):  # cos and sin of all positions so far, which a model keeps, are there in the second step
        with HostBytes() as bytes_of:
            requests = [NewTokens(n * count, length - count, count, pages) for n, pages in enumerate(table.unbind())]
            step = Step(attention.tables, requests, Slots(places, places, None), SIZE, table)
            for _ in range(2):
                attention(q, k, v, cache, step, out, rope, scale=0.25)
    return bytes_of.all


@pytest.fixture
def without_kernels(monkeypatch):
    """Kernels that take what those of a GPU take from the host, and compute nothing."""

    def banded(q, keys, v, plan, cos_sin, rope, *, pages, **_):
        assert pages.table.device == plan.ranges(q.device).device == q.device and plan.reach > 0
        return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)

    monkeypatch.setattr(paged_attention, "banded", banded)
    monkeypatch.setattr(chosen, "gather_into", lambda out, lse, job, impl: None)
    monkeypatch.setattr(chosen, "BOUNDS_AT_ONCE", 1 << 30)  # in how many parts they choose follows the device's memory


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 3])
def test_on_a_device(name, count, without_kernels):
    case, shape = build(*CASES[name]), (LENGTHS[1] // SIZE, KV_HEADS, SIZE, 2 * HEAD)
    with_room = KV_HEADS * (SIZE + 1) * 2 * HEAD
    cache = torch.empty_strided(shape, (with_room, SIZE * 2 * HEAD, 2 * HEAD, 1), device=META)
    short, long = (decode(case, length, 8, count, cache, META) for length in LENGTHS)
    assert short == long and short[2] == 0


@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")
@pytest.mark.parametrize("name", [name for name in CASES if name != "longheads"])
def test_on_a_processor(name):
    """Whose kernels read the pages, all of what they make counted."""
    case = build(*CASES[name])
    cache = torch.ones(LENGTHS[1] // SIZE, KV_HEADS, SIZE, 2 * HEAD)
    short, long = (decode(case, length, 2, 1, cache, torch.device("cpu")) for length in LENGTHS)
    assert short == long
