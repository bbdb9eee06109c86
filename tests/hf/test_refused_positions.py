"""``position_ids`` that do not continue the cache are refused; those that do are accepted in every form."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.errors import LongspanError
from support.hf_models import left_padded, make, prompts
from support.releases import TRANSFORMERS

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("no_gradients")]


@pytest.fixture
def model():
    model = make("llama")
    longspan.extend(model, "dca")
    return model


def row(*values):
    return torch.tensor([values])


@pytest.mark.parametrize(
    ("tokens", "positions"),
    [
        (1, row(0)),
        (1, row(79)),
        (1, row(81)),
        pytest.param(1, torch.tensor([5]), marks=pytest.mark.skipif(TRANSFORMERS < (5, 18), reason="its own error")),
        (3, row(0, 1, 2)),
        (3, row(80, 81, 83)),
        (3, row(80, 80, 81)),
        (3, row(82, 81, 80)),
        (3, row(81, 82, 83)),
        (1, row(-1)),
    ],
)
def test_positions_that_do_not_go_on_from_the_cache(model, tokens, positions):
    cache = model(prompts(1, 80)).past_key_values
    with pytest.raises(LongspanError, match="do not continue the 80 cached tokens"):
        model(prompts(1, tokens), past_key_values=cache, position_ids=positions)
    assert {store.length for store in cache.stores} == {80}
    model(prompts(1, tokens), past_key_values=cache, position_ids=torch.arange(80, 80 + tokens)[None])


@pytest.mark.parametrize(
    "positions",
    [torch.arange(20).repeat(2)[None], torch.arange(40)[None] + 100, torch.arange(40).flip(0)[None], row(*[0] * 40)],
)
def test_one_call(model, positions):
    with pytest.raises(LongspanError, match="packed"):
        model(prompts(1, 40), position_ids=positions)
    with pytest.raises(LongspanError, match="packed"):
        model(prompts(1, 40), position_ids=positions, use_cache=False)


@pytest.mark.parametrize("given", [1, 39, 41])
def test_positions_for_another_number_of_tokens(model, given):
    with pytest.raises((LongspanError, RuntimeError), match="position_ids are for|size of tensor"):
        model(prompts(1, 40), position_ids=torch.arange(given)[None])


@pytest.mark.parametrize("form", [lambda p: p, lambda p: p.int(), lambda p: p.expand(2, -1)])
def test_right_positions_in_every_form(model, form):
    ids = prompts(2, 80)
    want = model(ids).logits
    cache = longspan.new_cache(model)
    positions = torch.arange(80)[None]
    first = model(ids[:, :70], past_key_values=cache, position_ids=form(positions[:, :70])).logits
    then = [
        model(ids[:, t : t + 1], past_key_values=cache, position_ids=form(positions[:, t : t + 1])).logits
        for t in range(70, 80)
    ]
    assert torch.allclose(torch.cat([first, *then], 1), want, atol=1e-5)


@pytest.mark.parametrize("count", ["tokens", "slots"])
def test_padding_may_count_or_not_but_one_way_throughout(model, count):
    ids, mask, tokens = left_padded(prompts(2, 80), [7, 0])
    both = {"tokens": tokens, "slots": torch.arange(80).expand(2, -1)}
    other = both["slots" if count == "tokens" else "tokens"]
    cache = longspan.new_cache(model)
    want = model(ids, attention_mask=mask).logits
    model(ids[:, :70], attention_mask=mask[:, :70], position_ids=both[count][:, :70], past_key_values=cache)
    with pytest.raises(LongspanError, match="padding"):
        model(ids[:, 70:71], attention_mask=mask[:, :71], position_ids=other[:, 70:71], past_key_values=cache)
    got = [
        model(
            ids[:, t : t + 1],
            attention_mask=mask[:, : t + 1],
            position_ids=both[count][:, t : t + 1],
            past_key_values=cache,
        ).logits
        for t in range(70, 80)
    ]
    assert torch.allclose(torch.cat(got, 1), want[:, 70:], atol=1e-5)


@pytest.mark.parametrize("first", ["given", "left out"])
def test_positions_that_are_left_out_go_on_in_stock_layers_as_generates_do(first):
    """The layers with a sliding window rotate by ``position_ids``, and so remember how padding was counted."""
    model = make("gemma3_text")
    longspan.extend(model, "dca")
    ids, mask, tokens = left_padded(prompts(2, 40), [7, 0])
    want = model(ids[:1, 7:]).logits[:, -8:]
    cache, got = longspan.new_cache(model), []
    for a, b in ((0, 30), (30, 32), (32, 33), (33, 40)):
        given = {"position_ids": tokens[:, a:b]} if (first == "given") == (b in (30, 33)) else {}
        got.append(model(ids[:, a:b], attention_mask=mask[:, :b], past_key_values=cache, **given).logits)
    assert torch.allclose(torch.cat(got, 1)[:1, -8:], want, atol=1e-4)
    cache = longspan.new_cache(model)
    slots = torch.arange(32).expand(2, -1)
    model(ids[:, :32], attention_mask=mask[:, :32], position_ids=slots, past_key_values=cache)
    got = model(ids[:, 32:], attention_mask=mask, past_key_values=cache).logits
    assert torch.allclose(got[:1], want, atol=1e-4)


def test_a_wrong_row_of_a_padded_batch(model):
    ids, mask, tokens = left_padded(prompts(3, 80), [7, 0, 30])
    wrong = tokens.clone()
    wrong[2, 40:] += 1
    with pytest.raises(LongspanError, match="do not continue"):
        model(ids, attention_mask=mask, position_ids=wrong)
    model(ids, attention_mask=mask, position_ids=tokens)


def test_generate_is_held_to_it_too(model):
    ids = prompts(1, 40)
    model.generate(ids, max_new_tokens=3, position_ids=torch.arange(40)[None])
    with pytest.raises(LongspanError, match="do not continue"):
        model.generate(ids, max_new_tokens=3, position_ids=torch.arange(40)[None] + 9)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 2}, {"prefill_chunk_size": 13}])
def test_generates_own_positions_pass(model, options):
    ids, mask, _ = left_padded(prompts(1, 80), [7])
    model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, **options)


def test_after_a_crop_positions_go_on_from_there(model):
    cache = model(prompts(1, 80)).past_key_values
    cache.crop(-10)
    model(prompts(1, 1), past_key_values=cache, position_ids=row(70))
    with pytest.raises(LongspanError, match="the 71 cached tokens"):
        model(prompts(1, 1), past_key_values=cache, position_ids=row(81))


def test_positions_of_images_are_refused(model):
    """As models of images and text pass them to their decoder: a row for each axis."""
    same = torch.arange(40).expand(3, 1, -1)
    model.model(prompts(1, 40), position_ids=torch.arange(40)[None])
    from longspan.hf.position_ids import numbering

    assert numbering(same, None, (0,), 0, 40, None) is None
    moved = same.clone()
    moved[1, :, 10:] -= 5
    with pytest.raises(LongspanError, match="do not continue"):
        numbering(moved, None, (0,), 0, 40, None)
