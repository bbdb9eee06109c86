"""Short chunks, whose keys are stored by blocks of several: the same relative positions by fewer rotations."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
import torch

from longspan.attend import Attender
from longspan.kernels import cpu
from longspan.methods import LongHeads
from longspan.positions import InOrder
from support import steps
from support.attention import IMPLS, SCALE, N, check
from support.cases import ROPES, WINDOW, Case, make_qkv
from support.choices import assert_oracle_chooses, assert_tiles

SHORT = {
    "bounds": LongHeads(chunk_length=2, score="bounds"),
    "representation": LongHeads(chunk_length=1, num_chunks=9, local_chunks=3),
    "mean-head": LongHeads(chunk_length=3, score="mean", share="head", local_chunks=3, first_chunk=False),
    "kept": LongHeads(chunk_length=2, num_chunks=7, score="bounds", share="layer", dense="kept"),
}


@dataclass(frozen=True, kw_only=True)
class InBlocks(LongHeads):
    """LongHeads, and how many chunks a block has."""

    block: int = 1

    def positions(self, window):
        return replace(super().positions(window), block=self.block)


def case(name, block):
    given = SHORT[name].resolve(WINDOW)
    method = InBlocks(**{field.name: getattr(given, field.name) for field in fields(given)}, block=block)
    return Case(method, WINDOW, f"{name} in {block}")


@pytest.mark.parametrize("block", [2, 3, 5, 50])
@pytest.mark.parametrize("name", SHORT)
def test_bands_and_choices_tile_what_is_kept(name, block, rope):
    assert_oracle_chooses(case(name, block), 2, rope)
    assert_tiles(case(name, block), rope)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("block", [2, 5])
@pytest.mark.parametrize("name", SHORT)
def test_equals_the_oracle(name, block):
    for impl in IMPLS:
        check(case(name, block), impl, torch.float32)


@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="it runs in C")
@pytest.mark.parametrize("block", [2, 5])
@pytest.mark.parametrize("name", SHORT)
def test_a_single_token_in_one_call(name, block):
    qkv = make_qkv(steps.N, batch=2, dtype=torch.float32)
    out, other, _store, _longer, single = steps.both(case(name, block), ROPES["half-all"](), qkv)
    steps.assert_alike(out, other)
    assert single == steps.N - steps.PROMPT


@pytest.mark.parametrize("name", SHORT)
def test_the_block_changes_no_result(name):
    q, k, v = make_qkv(N, batch=2, dtype=torch.float64)
    outs = [
        Attender(case(name, block).method, WINDOW, "reference")(q, k, v, ROPES["half-all"](), scale=SCALE)
        for block in (1, 4)
    ]
    torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "block", "bands"), [(None, 1, 16), (16, 32, 16), (512, 1, 16), (1024, 1, 8)])
def test_dense_queries_of_short_chunks_have_as_few_bands(size, block, bands):
    method = LongHeads(chunk_length=size, score="bounds").resolve(8192)
    assert method.positions(8192) == InOrder(block)
    assert len(method.bands(8192, 0, 8192)) == bands
