"""The store, in each tier: grows in place, crops, reorders, and refuses what does not fit."""

from __future__ import annotations

import copy

import pytest
import torch

from longspan.errors import CacheError
from longspan.memory import KVStore, buffer
from longspan.memory.mapped import Kind, Memory

pytestmark = pytest.mark.usefixtures("poisoned")
TIERS = ["device", "host", "disk"]


@pytest.fixture(params=TIERS)
def tier(request):
    return request.param


def tokens(n, *, batch=2, heads=2, size=4, values=6, rotations=2, dtype=torch.float32):
    keys = [torch.randn(batch, heads, n, size).to(dtype) for _ in range(rotations)]
    return keys, torch.randn(batch, heads, n, values).to(dtype)


def filled(tier="device", n=30, **kwargs):
    store, (keys, values) = KVStore(tier), tokens(n, **kwargs)
    store.append(keys, values)
    return store, keys, values


def test_empty(tier):
    store = KVStore(tier)
    assert (store.length, store.capacity, store.nbytes, store.keys) == (0, 0, 0, [])
    with pytest.raises(ValueError, match="the store is empty"):
        store.take(None, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_holds_what_was_appended(tier, dtype):
    store, (keys, values) = KVStore(tier), tokens(0, dtype=dtype)
    for n in (5, 1, 200, 0, 1, 1):
        new_keys, new_values = tokens(n, dtype=dtype)
        keys = [torch.cat((a, b), dim=2) for a, b in zip(keys, new_keys, strict=True)]
        values = torch.cat((values, new_values), dim=2)
        store.append(new_keys, new_values)
        assert store.length == values.shape[2] and len(store.values) == 2
        assert all(torch.equal(a, b) for a, b in zip(store.keys, keys, strict=True))
        assert torch.equal(store.values, values)


def test_begins_with_no_tokens(tier):
    store, _, _ = filled(tier, 0)
    assert (store.length, len(store.values)) == (0, 2)
    keys, values = tokens(3)
    store.append(keys, values)
    assert torch.equal(store.values, values)


def test_grows_in_place_and_seldom(tier):
    store, _, _ = filled(tier, 1)
    places, grows = [x.data_ptr() for x in (*store.keys, store.values)], 0
    for _ in range(3000):
        store.append(*tokens(1))
        now = [x.data_ptr() for x in (*store.keys, store.values)]
        grows += now != places
        places = now
    assert grows <= (0 if tier == "disk" else 10)  # 64 · 1.5^10 > 3000
    held = sum(x.numel() * x.element_size() for x in (*store.keys, store.values))
    assert held <= store.nbytes <= 1.6 * held
    assert store.bytes_by_tier == {name: store.nbytes if name == tier else 0 for name in TIERS}


def test_host_memory_of_a_gpu_is_not_pinned():
    """Torch would round it up to a power of two and keep what is freed: four times a growing cache."""
    kind = Kind(1, 2, 8, torch.float16, torch.device("cuda"))  # which need not be here
    memory = Memory(kind, 100, host=True)
    assert memory.tensor.device.type == "cpu" and not memory.tensor.is_pinned()


def test_views_not_copies(tier):
    store, _, _ = filled(tier)
    assert store.keys[0].data_ptr() == store.keys[0].data_ptr()
    store.values.fill_(3.0)
    assert bool((store.values == 3.0).all())


def test_the_new_tokens_are_copied(tier):
    store, keys, values = filled(tier)
    expected = values.clone()
    keys[0].zero_(), values.zero_()
    assert torch.equal(store.values, expected) and store.keys[0].abs().sum() > 0


def test_crop_and_append(tier):
    store, keys, values = filled(tier)
    place = store.values.data_ptr()
    store.crop(0)
    store.crop(12)
    assert store.length == 18 and torch.equal(store.keys[1], keys[1][:, :, :18])
    new_keys, new_values = tokens(3)
    store.append(new_keys, new_values)
    assert torch.equal(store.values, torch.cat((values[:, :, :18], new_values), dim=2))
    assert store.values.data_ptr() == place


@pytest.mark.parametrize("drop", [-1, 31])
def test_crop_refuses(drop):
    store, _, _ = filled()
    with pytest.raises(ValueError, match=f"cannot drop {drop} of 30"):
        store.crop(drop)


def test_select_twice(tier):
    store, keys, values = filled(tier)
    store.select(torch.tensor([1, 0, 1]))
    assert torch.equal(store.keys[0], keys[0][[1, 0, 1]])
    store.select(torch.tensor([0, 0, 1, 1, 2, 2]))
    assert torch.equal(store.values, values[[1, 1, 0, 0, 1, 1]])
    store.append(*tokens(100, batch=6))
    assert store.length == 130 and torch.equal(store.keys[1][:, :, :30], keys[1][[1, 1, 0, 0, 1, 1]])


def test_rows_as_they_are_cost_nothing(tier):
    store, _, _ = filled(tier)
    place = store.values.data_ptr()
    store.select(torch.tensor([0, 1]))
    assert store.values.data_ptr() == place


@pytest.mark.parametrize("rows", [[0, 2], [-1]])
def test_select_refuses(tier, rows):
    store, _, values = filled(tier)
    with pytest.raises(CacheError, match="holds 2 rows, but rows .* were requested"):
        store.select(torch.tensor(rows))
    assert torch.equal(store.values, values)


def test_reset_frees_and_takes_any_shape(tier):
    store, _, _ = filled(tier)
    store.reset()
    assert (store.length, store.capacity, store.nbytes) == (0, 0, 0)
    store.append(*tokens(2, batch=1, heads=3, rotations=1))
    assert store.length == 2


@pytest.mark.parametrize(
    "other",
    [{"batch": 1}, {"heads": 1}, {"size": 8}, {"values": 4}, {"rotations": 1}, {"dtype": torch.float64}],
    ids=lambda o: next(iter(o)),
)
def test_refuses_what_does_not_fit(tier, other):
    store, _, values = filled(tier)
    with pytest.raises(CacheError, match="the cache holds .* cannot take"):
        store.append(*tokens(1, **other))
    assert store.length == 30 and torch.equal(store.values, values)


def test_refuses_unequal_numbers():
    store, _, values = filled()
    keys, _ = tokens(1)
    with pytest.raises(CacheError, match=r"\[1, 1, 4\] tokens"):
        store.append(keys, tokens(4)[1])
    assert store.length == 30 and torch.equal(store.values, values)


def test_filled_in_inference_mode_and_used_outside(tier):
    with torch.inference_mode():
        store, _, values = filled(tier)
        store.select(torch.tensor([1, 0]))
    new_keys, new_values = tokens(100)
    store.append(new_keys, new_values)
    assert torch.equal(store.values[:, :, -100:], new_values)
    assert torch.equal(store.values[:, :, :30], values[[1, 0]])


def test_a_copy_is_its_own(tier):
    store, _, values = filled(tier)
    twin = copy.deepcopy(store)
    store.append(*tokens(5))
    store.values.zero_()
    assert twin.length == 30 and torch.equal(twin.values, values)
    twin.append(*tokens(100))
    assert torch.equal(twin.values[:, :, :30], values)


# take and gather


def test_take(tier):
    store, keys, values = filled(tier)
    for start, stop in ((0, 30), (7, 19), (30, 30)):
        assert torch.equal(store.take(1, start, stop), keys[1][:, :, start:stop])
        assert torch.equal(store.take(None, start, stop), values[:, :, start:stop])
    assert store.take(0, 0, 5).data_ptr() == store.keys[0].data_ptr()


@pytest.mark.parametrize("span", [(-1, 3), (5, 4), (0, 31)])
def test_take_refuses(span):
    store, _, _ = filled()
    with pytest.raises(ValueError, match="there are tokens 0 to 30"):
        store.take(0, *span)


@pytest.mark.parametrize("stream", [-1, 2])
def test_streams_that_are_not(stream):
    store, _, _ = filled()
    with pytest.raises(ValueError, match=f"2 rotations .* number {stream}"):
        store.take(stream, 0, 1)


# The index


class Index:
    """Writes down what it is told."""

    nbytes = 1000

    def __init__(self, store):
        self.store, self.told, self.broken = store, [], False

    def crop(self, length):
        if self.broken:
            raise CacheError("no")
        self.told.append(("crop", length, self.store.length))

    def select(self, rows):
        self.told.append(("select", rows.tolist()))

    def reset(self):
        self.told.append(("reset",))


def test_the_index_hears_of_everything(tier):
    store, _, _ = filled(tier)
    before = store.nbytes
    index = store.index = Index(store)
    assert store.nbytes == before + 1000
    assert store.bytes_by_tier["device"] == (before if tier == "device" else 0) + 1000
    store.crop(12)
    store.select(torch.tensor([1, 0, 1]))
    store.select(torch.tensor([0, 0, 1, 1, 2, 2]))
    store.reset()
    assert index.told == [("crop", 18, 30), ("select", [1, 0, 1]), ("select", [0, 0, 1, 1, 2, 2]), ("reset",)]


def test_an_index_that_cannot_crop():
    store, _, values = filled()
    store.index = Index(store)
    store.index.broken = True
    with pytest.raises(CacheError, match="no"):
        store.crop(12)
    assert store.length == 30 and torch.equal(store.values, values)


# The buffer by itself


def test_a_buffer(tier):
    held, like = buffer.Buffer(tier), torch.randn(2, 3, 5, 4)
    assert (held.capacity, held.nbytes, held.kind) == (0, 0, None)
    with pytest.raises(ValueError, match="nothing was reserved"):
        held.allocated  # noqa: B018
    held = held.selected([])
    held.reserve(like, 5)
    assert held.allocated.shape == (2, 3, held.capacity, 4) and held.capacity >= 5
    assert held.nbytes == held.allocated.numel() * 4
    held.allocated[:, :, :5] = like
    capacity = held.capacity
    held.reserve(like, capacity)
    assert held.capacity == capacity
    held.reserve(like[:, :, :0], capacity + 1)
    assert held.capacity == max(capacity + 65, capacity * 3 // 2) and torch.equal(held.allocated[:, :, :5], like)
    held = held.selected([1]).selected([0, 0])
    assert torch.equal(held.allocated[:, :, :5], like[[1, 1]])
    with pytest.raises(CacheError, match="cannot take"):
        held.reserve(like[:1], 5)
    held.reset()
    held.reserve(like[:1], 5)
    assert held.allocated.shape[0] == 1
