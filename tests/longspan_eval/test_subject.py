"""The model under test: its weights, its tokenizer, and where attention overtakes the rest."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import longspan
from longspan.bundled import FOLDER, load_bundled
from longspan.methods import METHODS, StreamingLLM
from longspan.model.weights import weights_hash
from longspan_eval.measure import Keys, TaskPrompt
from longspan_eval.spec import MethodSpec, parse_spec
from longspan_eval.subject import Subject
from longspan_eval.tasks import TASKS
from support.packages import put_package


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


def test_the_hash_follows_the_weights():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    before = weights_hash(model)
    assert before == weights_hash(model) and len(before) == 64
    with torch.no_grad():
        model.bias[0] += 1
    assert weights_hash(model) != before


def test_samples_depend_on_the_version_of_a_method_s_package(tmp_path, monkeypatch):
    folder = put_package(tmp_path, monkeypatch, "toy", "toy_seven:Toy", "")
    spec = MethodSpec(METHODS["streaming-llm"]())
    # As if the package had named this method: its own would stay in METHODS for the tests that follow.
    monkeypatch.setattr(StreamingLLM, "name", "toy")

    def depends():
        return Keys(Subject(512, "")).method(spec, 1024)

    assert depends()["package"] == ["toy_seven", "1.0"]
    about = folder / "toy_seven-1.0.dist-info" / "METADATA"
    about.write_text(about.read_text().replace("1.0", "1.1"))
    assert depends()["package"] == ["toy_seven", "1.1"]
    monkeypatch.undo()
    assert "package" not in depends()
