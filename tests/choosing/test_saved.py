"""Each index saves what it holds by one protocol, and goes on from that elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longspan.choosing.block_index import BlockIndex
from longspan.choosing.blocks import Blocks
from longspan.choosing.chunk_index import ChunkIndex
from longspan.choosing.saved import Entries, SavableIndex
from longspan.choosing.token_index import TokenIndex
from longspan.memory.mapped import Kind, Memory
from support.cases import HEAD, make_qkv

SCALE, LENGTH, MORE = HEAD**-0.5, 150, 40
BLOCKS = Blocks(initial=2, local=6, size=3, blocks=2, query_chunk=4, representatives=2, dense_queries=24)


def reduced():
    g = torch.Generator().manual_seed(3)
    return TokenIndex(*(torch.randn(4, 2 * HEAD, generator=g).double() for _ in range(2)))


INDICES = {
    "representation": lambda: ChunkIndex(5, "representation"),
    "bounds": lambda: ChunkIndex(5, "bounds"),
    "token_max": lambda: ChunkIndex(5, "token_max"),
    "blocks": lambda: BlockIndex(BLOCKS),
    "tokens": reduced,
}


def laid(saved):
    """Copies of an index's entries, as a document gives them back."""
    if saved.entries is None:
        return None
    memory = Memory(Kind.of(saved.entries), saved.entries.shape[2] + 7, host=False)
    memory.write(0, saved.entries)
    return Entries(memory, saved.entries.shape[2])


def fed(index, qkv, start, stop, rope):
    index.extend(*(x[:, :, start:stop] for x in qkv), (0,), rope, SCALE)
    return index


def same(one, other):
    pairs = list(zip(one.state(), other.state(), strict=True))
    return pairs and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("first", [3, LENGTH])
def test_it_goes_on_as_if_nothing_had_been(name, first, rope):
    qkv = make_qkv(first + MORE)
    index = fed(INDICES[name](), qkv, 0, first, rope)
    assert isinstance(index, SavableIndex)
    saved, twin = index.save(), INDICES[name]()
    assert (saved.entries is None) == (first == 3 and name != "tokens")
    inputs = tuple(x.clone() for x in saved.inputs)
    twin.restore(replace(saved, entries=None, inputs=inputs), laid(saved), first)
    assert same(index, twin)
    assert same(fed(index, qkv, first, first + MORE, rope), fed(twin, qkv, first, first + MORE, rope))
    longer = index.save()
    assert longer.entries.shape[2] <= index.most_entries(first + MORE)
    if saved.entries is not None:
        assert torch.equal(longer.entries[:, :, : saved.entries.shape[2]], saved.entries), "entries only grow"


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("left", [LENGTH - 61, LENGTH // 2])
def test_it_goes_on_from_what_tokens_were_dropped_of(name, left, rope):
    """A conversation that left another one in the middle is moved to the disk."""
    qkv = make_qkv(LENGTH)
    index = fed(INDICES[name](), qkv, 0, LENGTH, rope)
    left = index.croppable(left) if hasattr(index, "croppable") else left
    index.crop(left)
    fed(index, qkv, left, left + 3, rope)
    saved, twin = index.save(), INDICES[name]()
    inputs = tuple(x.clone() for x in saved.inputs)
    twin.restore(replace(saved, entries=None, inputs=inputs), laid(saved), left + 3)
    assert same(index, twin)
    assert same(fed(index, qkv, left + 3, LENGTH, rope), fed(twin, qkv, left + 3, LENGTH, rope))


@pytest.mark.parametrize("name", INDICES)
def test_what_is_not_of_such_an_index_is_refused(name, rope):
    index = fed(INDICES[name](), make_qkv(LENGTH), 0, LENGTH, rope)
    saved, entries = index.save(), laid(index.save())
    wrong = [
        (replace(saved, counts={**saved.counts, "length": [LENGTH - 1]}), entries, f"of {LENGTH - 1} tokens"),
        (saved, replace(entries, count=entries.count - 1), "entries, but should have"),
        (saved, None, "has 0 entries"),
    ]
    if saved.inputs:
        short = tuple(x[:, :, 1:] for x in saved.inputs)
        wrong.append((replace(saved, inputs=short), entries, "inputs kept are not those"))
        wrong.append((replace(saved, inputs=()), entries, "inputs kept are not those"))
        wrong.append((replace(saved, counts={**saved.counts, "tail": [0, LENGTH - 2]}), entries, "inputs end at token"))
    if name == "blocks":
        wrong.append((replace(saved, counts={**saved.counts, "calls": [LENGTH]}), entries, "calls do not lie within"))
    for changed, laid_out, words in wrong:
        with pytest.raises(ValueError, match=words):
            INDICES[name]().restore(changed, laid_out, LENGTH)
