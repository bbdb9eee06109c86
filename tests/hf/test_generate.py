"""Every way to call an extended model gives stock's tokens under Full."""

import pytest
import torch
from transformers import AutoTokenizer, TextIteratorStreamer, pipeline

import longspan
from longspan.hf import generation
from support.hf_models import WINDOW, left_padded, make, prompts

NEW = 8


@pytest.fixture(scope="module")
def models():
    """A model, an assistant, and the same two extended."""
    stock, ours = [make("llama"), make("qwen3")], [make("llama"), make("qwen3")]
    for model in ours:
        longspan.extend(model, "full")
    return stock, ours


def generate(model, ids, **options):
    torch.manual_seed(1)
    return model.generate(ids, max_new_tokens=NEW, pad_token_id=0, eos_token_id=None, **options)


MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 3, "do_sample": False},
    "several beams": {"num_beams": 4, "num_return_sequences": 2, "do_sample": False},
    "prefill in pieces": {"prefill_chunk_size": 7, "do_sample": False},
    "no cache": {"use_cache": False, "do_sample": False},
}


def test_this_transformers_has_all_that_generate_is_changed_by(models):
    """A method of its own that it no longer has would be passed over, and guesses would choose with other tokens."""
    assert set(generation._SHADOWS) <= set(vars(models[1][0]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padded", [False, True])
def test_modes(models, mode, padded):
    (stock, _), (ours, _) = models
    ids, mask, _ = left_padded(prompts(), [7, 0] if padded else [0, 0])
    expected = generate(stock, ids, attention_mask=mask, **MODES[mode])
    assert torch.equal(generate(ours, ids, attention_mask=mask, **MODES[mode]), expected)


def test_prompt_lookup(models):
    (stock, _), (ours, _) = models
    ids = prompts(1).repeat(1, 2)  # something to look up
    options = {"prompt_lookup_num_tokens": 3, "do_sample": False}
    assert torch.equal(generate(ours, ids, **options), generate(stock, ids, **options))


def test_assistant_model(models):
    (stock, stock_assistant), (ours, assistant) = models
    ids = prompts(1)
    expected = generate(stock, ids, assistant_model=stock_assistant, do_sample=False)
    assert torch.equal(generate(ours, ids, assistant_model=assistant, do_sample=False), expected)
    assert torch.equal(generate(ours, ids, assistant_model=stock_assistant, do_sample=False), expected)


def test_inputs_embeds(models):
    (stock, _), (ours, _) = models
    embeds = stock.get_input_embeddings()(prompts(1))
    expected = stock.generate(inputs_embeds=embeds, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    assert torch.equal(
        ours.generate(inputs_embeds=embeds, max_new_tokens=NEW, do_sample=False, eos_token_id=None), expected
    )


@pytest.mark.parametrize("padded", [False, True])
def test_second_turn_on_the_same_cache(models, padded):
    (stock, _), (ours, _) = models
    ids, mask, _ = left_padded(prompts(), [7, 0] if padded else [0, 0])
    turns = []
    for model in (stock, ours):
        first = generate(model, ids, attention_mask=mask, do_sample=False, return_dict_in_generate=True)
        more = torch.cat((first.sequences, prompts(2, 5, seed=9)), dim=1)
        longer = torch.nn.functional.pad(mask, (0, more.shape[1] - mask.shape[1]), value=1)
        turns.append(
            generate(model, more, attention_mask=longer, past_key_values=first.past_key_values, do_sample=False)
        )
    assert torch.equal(turns[0], turns[1])


@pytest.mark.parametrize(
    ("tokens", "options"), [(40, {}), (50, {}), (20, {"prompt_lookup_num_tokens": 3}), (20, {"assistant_model": None})]
)
def test_a_cache_that_generate_would_not_go_on_from(models, tokens, options):
    """transformers reads the prompt from its first token on, behind what the cache holds; 5.15 with its mask."""
    (_, assistant), (ours, _) = models
    ids, cache = prompts(1, 50), longspan.new_cache(ours)
    with torch.no_grad():
        ours(ids[:, :tokens], past_key_values=cache)
    options = {name: assistant if name == "assistant_model" else value for name, value in options.items()}
    reason = "has more; with an assistant or prompt lookup pass.*empty cache|attention_mask covers 4[01] tokens and"
    with pytest.raises(longspan.LongspanError, match=reason):
        generate(ours, ids[:, :40], past_key_values=cache, do_sample=False, **options)
    assert cache.get_seq_length() == tokens
    whole = generate(ours, ids, do_sample=False)
    cache.crop(20)
    assert torch.equal(generate(ours, ids, past_key_values=cache, do_sample=False), whole)


def test_pipeline_and_streaming():
    model, tokenizer = longspan.load_bundled()
    text = "The grass is green. The sky is blue."
    ids = tokenizer(text, return_tensors="pt").input_ids
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False)
    said = pipeline("text-generation", model=model, tokenizer=tokenizer)(text, max_new_tokens=NEW, do_sample=False)
    longspan.extend(model, "full")
    assert torch.equal(model.generate(ids, max_new_tokens=NEW, do_sample=False), expected)
    ours = pipeline("text-generation", model=model, tokenizer=tokenizer)(text, max_new_tokens=NEW, do_sample=False)
    assert ours == said
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    model.generate(ids, max_new_tokens=NEW, do_sample=False, streamer=streamer)
    assert "".join(streamer) == tokenizer.decode(expected[0, ids.shape[1] :])


def test_saved_and_loaded_models(tmp_path):
    model, tokenizer = longspan.load_bundled()
    longspan.extend(model, "dca")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config._attn_implementation != "longspan"
    ids = AutoTokenizer.from_pretrained(tmp_path)("The sky is blue.", return_tensors="pt").input_ids
    longspan.restore(model)
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_prompts_beyond_the_window_need_no_settings():
    model = make("llama")
    longspan.extend(model, "dca")
    ids = prompts(1, 3 * WINDOW)
    with torch.no_grad():
        default = model.generate(ids, do_sample=False, eos_token_id=None, pad_token_id=0)
        limited = model.generate(ids, do_sample=False, eos_token_id=None, pad_token_id=0, max_length=ids.shape[1] + 3)
    assert default.shape[1] == ids.shape[1] + 20
    assert limited.shape[1] == ids.shape[1] + 3
    assert torch.equal(limited, default[:, : limited.shape[1]])
    longspan.restore(model)
    assert "_prepare_generated_length" not in vars(model)


FOLLOWS_CALL = [name for name, m in longspan.METHODS.items() if m().length_dependent or m().call_dependent]


@pytest.mark.parametrize("method", [name for name in longspan.METHODS if name not in FOLLOWS_CALL])
def test_pieces_beams_and_lookup_agree_beyond_the_window(method):
    """The store's crop and reorder under every position map: the tokens are those of plain greedy decoding."""
    model = make("llama")
    longspan.extend(model, method)
    ids, mask, _ = left_padded(prompts(2, 150), [0, 30])
    greedy = generate(model, ids, attention_mask=mask, do_sample=False)
    pieces = generate(model, ids, attention_mask=mask, do_sample=False, prefill_chunk_size=37)
    assert torch.equal(greedy, pieces)
    looked_up = generate(model, ids[:1], do_sample=False, prompt_lookup_num_tokens=3)
    assert torch.equal(looked_up, greedy[:1])
    beams = {"num_beams": 3, "do_sample": False, "attention_mask": mask}
    assert torch.equal(generate(model, ids, **beams), generate(model, ids, use_cache=False, **beams))


@pytest.mark.parametrize("method", [name for name, m in longspan.METHODS.items() if m().call_dependent])
def test_methods_that_choose_per_piece_generate_beyond_the_window(method):
    """Which pieces arrive decides what they choose; within one way of arriving, rows, beams and crops are sound."""
    model = make("llama")
    longspan.extend(model, method)
    ids, mask, _ = left_padded(prompts(2, 150), [0, 30])
    greedy = generate(model, ids, attention_mask=mask, do_sample=False)
    assert torch.equal(generate(model, ids[:1], do_sample=False), greedy[:1])
    assert torch.equal(generate(model, ids[1:, 30:], do_sample=False), greedy[1:, 30:])
    one_beam = generate(model, ids, attention_mask=mask, do_sample=False, num_beams=3, num_return_sequences=3)
    assert one_beam.shape == (6, greedy.shape[1])
    looked_up = generate(model, ids[:1], do_sample=False, prompt_lookup_num_tokens=3)  # tokens are dropped again
    assert torch.equal(looked_up[:, : ids.shape[1]], ids[:1]) and looked_up.shape[1] > ids.shape[1] + 3


@pytest.mark.parametrize(
    ("method", "warned"),
    [
        ("dca", False),
        (longspan.LongHeads(chunk_length=4), False),
        ("dynamic-ntk", False),
        ("full", True),
        (longspan.YaRN(factor=2), True),
    ],
)
def test_transformers_warns_of_a_text_that_is_too_long_where_it_is(method, warned, monkeypatch):
    """The text has three windows: the stock model and YaRN at twice the window do not reach them, the others do."""
    from transformers.generation import stopping_criteria

    said = []
    # transformers warns once per process.
    monkeypatch.setattr(stopping_criteria.logger, "warning_once", said.append)
    model, ids = make("llama"), prompts(1).repeat(1, 9)[:, : 3 * WINDOW]
    own = stopping_criteria.MaxLengthCriteria(ids.shape[1] + NEW + 9, max_position_embeddings=5)
    with longspan.extended(model, method):
        assert ids.shape[1] == 3 * WINDOW
        generate(model, ids)
        assert any("predefined maximum length" in one for one in said) == warned
        generate(model, ids, stopping_criteria=[own])
    assert own.max_position_embeddings == 5, "what the caller passed is the caller's"
    assert "_get_stopping_criteria" not in vars(model)
