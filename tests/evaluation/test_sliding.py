"""Sliding perplexity in both modes against a direct computation, and what each of them counts."""

from __future__ import annotations

import math

import pytest
import torch

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.errors import DataError
from longspan.evaluation.sliding import read_tokens, score_new, sliding_perplexity, summed, whole_windows

WINDOW, STRIDE = 64, 24


@pytest.fixture(scope="module")
def bundled():
    return load_bundled()


@pytest.fixture(scope="module")
def ids(bundled):
    _, tokenizer = bundled
    return tokenizer(heldout_text()[:900])["input_ids"]


def losses_of(model, ids):
    """Nats of every token but the first, by a plain pass."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    return [-float(logits[n - 1].double().log_softmax(-1)[ids[n]]) for n in range(1, len(ids))]


def direct(model, ids, mode, skip=0):
    """Perplexity by the definitions, a loop over tokens or over windows."""
    if mode == "whole":
        each = []
        for begin in range(0, len(ids) - WINDOW + 1, STRIDE):
            losses = losses_of(model, ids[begin : begin + WINDOW])
            each.append(sum(losses) / len(losses))
        return math.exp(sum(each) / len(each))
    scored = {}
    for end in [*range(WINDOW, len(ids), STRIDE), len(ids)]:
        for n, loss in enumerate(losses_of(model, ids[end - WINDOW : end]), end - WINDOW + 1):
            scored.setdefault(n, loss)  # the first window that has a token scores it
    assert sorted(scored) == list(range(1, len(ids)))
    kept = [loss for n, loss in scored.items() if n >= skip]
    return math.exp(sum(kept) / len(kept))


@pytest.mark.parametrize("extended", [False, True])
def test_both_modes_equal_a_direct_computation(bundled, ids, extended):
    model, _ = bundled
    assert len(ids) > 3 * WINDOW and (len(ids) - WINDOW) % STRIDE
    if extended:
        longspan.extend(model, longspan.StreamingLLM(recent=24))
    try:
        new = summed(score_new(model, ids, window=WINDOW, stride=STRIDE))
        whole = summed(whole_windows(model, ids, window=WINDOW, stride=STRIDE))
        skipped = summed(score_new(model, ids, window=WINDOW, stride=STRIDE, skip=100))
        assert new.value == pytest.approx(direct(model, ids, "new"), rel=1e-4)
        assert whole.value == pytest.approx(direct(model, ids, "whole"), rel=1e-4)
        assert skipped.value == pytest.approx(direct(model, ids, "new", skip=100), rel=1e-4)
    finally:
        if extended:
            longspan.restore(model)
    assert new.scored == len(ids) - 1 and skipped.scored == len(ids) - 100
    assert whole.windows == (len(ids) - WINDOW) // STRIDE + 1 and whole.scored == whole.windows * (WINDOW - 1)
    assert whole.value > new.value


@pytest.mark.parametrize("total", [64, 65, 87, 88, 89, 112])
@pytest.mark.parametrize("stride", [1, 24, 63])
@pytest.mark.parametrize("skip", [0, 1, 63, 64, 70])
def test_every_token_from_skip_on_is_scored_once(model, total, stride, skip):
    ids = list(range(10, 10 + total))
    if skip >= total:
        with pytest.raises(ValueError, match=rf"skip must lie in 0\.\.{total - 1}"):
            score_new(model, ids, window=WINDOW, stride=stride, skip=skip)
        return
    windows = list(score_new(model, ids, window=WINDOW, stride=stride, skip=skip))
    assert [n for one in windows for n in range(one.first, one.end)] == list(range(max(1, skip), total))
    for one in windows:
        assert one.end - one.begin == WINDOW and one.begin >= 0 and one.scored > 0
        assert one.begin == 0 or one.first - one.begin >= WINDOW - stride


def test_a_window_of_the_whole_text_is_the_plain_perplexity(bundled, ids):
    model, _ = bundled
    plain = losses_of(model, ids[:WINDOW])
    for mode in (score_new, whole_windows):
        (one,) = mode(model, ids[:WINDOW], window=WINDOW, stride=8)
        assert one.loss == pytest.approx(sum(plain), rel=1e-4) and one.scored == WINDOW - 1


def test_of_a_file(bundled, ids, tmp_path):
    model, tokenizer = bundled
    path = tmp_path / "text.txt"
    path.write_text("\ufeff" + heldout_text()[:900], encoding="utf-8")
    assert read_tokens(tokenizer, path) == ids
    for mode, windows in (("new", score_new), ("whole", whole_windows)):
        found = sliding_perplexity(model, tokenizer, path, window=128, stride=100, mode=mode)
        assert found == summed(windows(model, ids, window=128, stride=100))
    fewer = sliding_perplexity(model, tokenizer, str(path), window=128, skip=128, stride=127)
    assert fewer.scored == len(ids) - 128
    for change, said in [({"mode": "both"}, "mode must be"), ({"mode": "whole", "skip": 1}, "skip is for mode 'new'")]:
        with pytest.raises(ValueError, match=said):
            sliding_perplexity(model, tokenizer, path, window=128, **change)


@pytest.mark.parametrize(
    "data, said", [(b"", "no text"), (b" \n", "no text"), (b"\xff", "not UTF-8"), (None, "cannot")]
)
def test_a_file_that_cannot_be_read_is_named(bundled, tmp_path, data, said):
    path = tmp_path / "text.txt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DataError, match=rf"text\.txt: .*{said}"):
        read_tokens(bundled[1], path)


@pytest.mark.parametrize("mode", [score_new, whole_windows])
@pytest.mark.parametrize(
    "window, stride, said",
    [
        (1, 1, "window must be at least 2"),
        (8, 0, "stride must be at least 1"),
        (21, 4, "20 tokens, less than a window"),
    ],
)
def test_numbers_out_of_range_are_named_at_once(model, mode, window, stride, said):
    with pytest.raises(ValueError, match=said):
        mode(model, list(range(20)), window=window, stride=stride)


def test_a_stride_of_a_window_leaves_its_first_token_without_one_before(model):
    with pytest.raises(ValueError, match="stride must be less than the window, not 8 of 8"):
        score_new(model, list(range(20)), window=8, stride=8)
    assert len(list(whole_windows(model, list(range(20)), window=8, stride=12))) == 2
    with pytest.raises(ValueError, match="at least one scored token"):
        summed([])
