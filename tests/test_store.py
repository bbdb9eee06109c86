"""The store: grows in place, crops, reorders, and refuses what does not fit."""

from __future__ import annotations

import pytest
import torch

from longspan.store import KVStore

pytestmark = pytest.mark.usefixtures("poisoned")


def tokens(n, *, batch=2, heads=2, size=4, values=6, rotations=2, dtype=torch.float32):
    keys = [torch.randn(batch, heads, n, size, dtype=dtype) for _ in range(rotations)]
    return keys, torch.randn(batch, heads, n, values, dtype=dtype)


def filled(n=30, **kwargs):
    store, (keys, values) = KVStore(), tokens(n, **kwargs)
    store.append(keys, values)
    return store, keys, values


def test_empty():
    store = KVStore()
    assert (store.length, store.batch, store.nbytes) == (0, 0, 0)


def test_holds_what_was_appended():
    store, keys, values = KVStore(), *tokens(0)
    for n in (5, 1, 200, 1, 1):
        new_keys, new_values = tokens(n)
        keys = [torch.cat((a, b), dim=2) for a, b in zip(keys, new_keys, strict=True)]
        values = torch.cat((values, new_values), dim=2)
        store.append(new_keys, new_values)
        assert store.length == values.shape[2] and store.batch == 2
        assert all(torch.equal(a, b) for a, b in zip(store.keys, keys, strict=True))
        assert torch.equal(store.values, values)


def test_grows_in_place_and_seldom():
    store, _, _ = filled(1)
    places, grows = [x.data_ptr() for x in (*store.keys, store.values)], 0
    for _ in range(3000):
        store.append(*tokens(1))
        now = [x.data_ptr() for x in (*store.keys, store.values)]
        grows += now != places
        places = now
    assert grows <= 10  # 64 · 1.5^10 > 3000
    held = sum(x.numel() * x.element_size() for x in (*store.keys, store.values))
    assert held <= store.nbytes <= 1.6 * held


def test_views_not_copies():
    store, _, _ = filled()
    assert store.keys[0].data_ptr() == store.keys[0].data_ptr() and store.values._base is not None


def test_the_new_tokens_are_copied():
    store, keys, values = filled()
    expected = values.clone()
    keys[0].zero_(), values.zero_()
    assert torch.equal(store.values, expected) and store.keys[0].abs().sum() > 0


def test_crop_and_append():
    store, keys, values = filled()
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


def test_select_and_repeat():
    store, keys, values = filled()
    store.select(torch.tensor([1, 0, 1]))
    assert store.batch == 3 and torch.equal(store.keys[0], keys[0][[1, 0, 1]])
    store.repeat(2)
    assert store.batch == 6 and torch.equal(store.values, values[[1, 1, 0, 0, 1, 1]])
    store.append(*tokens(4, batch=6))
    assert store.length == 34


def test_reset_frees_and_takes_any_shape():
    store, _, _ = filled()
    store.reset()
    assert (store.length, store.batch, store.nbytes) == (0, 0, 0)
    store.append(*tokens(2, batch=1, heads=3, rotations=1))
    assert store.length == 2


@pytest.mark.parametrize(
    "other",
    [{"batch": 1}, {"heads": 1}, {"size": 8}, {"values": 4}, {"rotations": 1}, {"dtype": torch.float64}],
    ids=lambda o: next(iter(o)),
)
def test_refuses_what_does_not_fit(other):
    store, _, values = filled()
    with pytest.raises(ValueError, match="the cache holds .* cannot take"):
        store.append(*tokens(1, **other))
    assert store.length == 30 and torch.equal(store.values, values)


def test_filled_in_inference_mode_and_used_outside():
    with torch.inference_mode():
        store, _, values = filled()
    new_keys, new_values = tokens(1)
    store.append(new_keys, new_values)
    assert torch.equal(store.values[:, :, -1:], new_values)
