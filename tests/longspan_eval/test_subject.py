"""The model under test: its weights, its tokenizer, and where attention overtakes the rest."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import longspan
from longspan.bundled import FOLDER, load_bundled
from longspan.model.weights import weights_hash
from longspan_eval.measure import Keys, TaskPrompt
from longspan_eval.spec import parse_spec
from longspan_eval.subject import Subject, tokenizer_hash
from longspan_eval.tasks import TASKS


def fresh():
    return PreTrainedTokenizerFast.from_pretrained(FOLDER)


def test_a_subject_is_what_samples_depend_on(model, tokenizer):
    made = Subject.of(model, tokenizer)
    assert (made.window, made.dtype, made.parameters) == (256, "float32", model.num_parameters())
    assert made == Subject.of(model, fresh())
    assert Subject.of(model, tokenizer, window=99).window == 99
    assert len({made.sha256, made.tokenizer_sha256, Subject.of(model.bfloat16()).sha256}) == 3


def test_a_config_counts_but_for_the_bundled_models_own():
    """Its samples were measured before configs were in their keys."""

    def key(model):
        return Keys(Subject.of(model))(TaskPrompt(parse_spec("dca"), 512, 0, task=TASKS["passkey"]))

    model, _ = load_bundled()
    before = key(model)
    assert Subject.of(model).config_sha256 == ""
    with longspan.extended(model, "dca"):
        assert key(model) == before
    model.config.rope_parameters["rope_theta"] *= 8
    turned = key(model)
    model.generation_config.eos_token_id = [5, 6]
    assert len({before, turned, key(model)}) == 3


def test_attention_overtakes_the_rest_where_their_operations_are_equal():
    model, _ = load_bundled()
    config = model.config
    weights = model.num_parameters() - model.get_input_embeddings().weight.numel()
    n = Subject.of(model).crossover
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * n / 2
    assert attention == pytest.approx(2 * weights, rel=0.2)


@pytest.mark.parametrize("change", ["a token", "a special one", "a template", "a rule"])
def test_the_tokenizers_hash_changes_with(change):
    tokenizer = fresh()
    before = tokenizer_hash(tokenizer)
    if change == "a token":
        tokenizer.add_tokens(["passkey"])
    elif change == "a special one":
        tokenizer.eos_token = "."
    elif change == "a template":
        tokenizer.chat_template = "{{ messages }}"
    else:
        from tokenizers.normalizers import Lowercase

        tokenizer.backend_tokenizer.normalizer = Lowercase()
    assert tokenizer_hash(tokenizer) != before


def test_using_a_tokenizer_does_not_change_its_hash():
    tokenizer = fresh()
    before = tokenizer_hash(tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        before = tokenizer_hash(tokenizer)
    tokenizer(["a text", "another that is longer"], padding=True, truncation=True, max_length=3)
    assert tokenizer_hash(tokenizer) == before


def test_the_hash_follows_the_weights():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    before = weights_hash(model)
    assert before == weights_hash(model) and len(before) == 64
    with torch.no_grad():
        model.bias[0] += 1
    assert weights_hash(model) != before
