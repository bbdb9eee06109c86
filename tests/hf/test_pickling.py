"""An extended model cannot be pickled or copied, and its config goes nowhere with longspan's name in it."""

from __future__ import annotations

import copy
import io
import json
import pickle

import pytest
import torch
from torch import multiprocessing
from transformers import AutoModelForCausalLM

import longspan
from longspan.errors import LongspanError
from support.hf_models import make, prompts

pytestmark = pytest.mark.hostile


def extended(name="llama"):
    model = make(name)
    longspan.extend(model, "dca")
    return model


def sent_to_a_process(model):
    multiprocessing.get_context("spawn").Process(target=print, args=(model,)).start()


@pytest.mark.parametrize("name", ["llama", "hunyuan_v1_dense", "gemma2"])
@pytest.mark.parametrize(
    "take",
    [
        pickle.dumps,
        copy.deepcopy,
        lambda m: torch.save(m, io.BytesIO()),
        lambda m: pickle.dumps(m.model),
        lambda m: copy.deepcopy(m.model.layers[1].self_attn),
        sent_to_a_process,
    ],
)
def test_refused_in_one_line(name, take):
    model = extended(name)
    with pytest.raises(LongspanError, match="cannot be pickled or copied.*restore.*save_pretrained") as error:
        take(model)
    assert "\n" not in str(error.value)
    with torch.no_grad():
        model(prompts())  # which goes on as before


def test_right_again_after_restore():
    model = extended()
    longspan.restore(model)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    with torch.no_grad():
        assert torch.equal(twin(prompts()).logits, model(prompts()).logits)
    longspan.extend(twin, "dca")


def test_a_saved_model_is_the_stock_one(tmp_path):
    model = extended()
    model.save_pretrained(tmp_path)
    assert "longspan" not in (tmp_path / "config.json").read_text()
    for written in (model.config.to_json_string(), json.dumps(model.config.to_dict()), repr(model.config)):
        assert "longspan" not in written
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.allclose(again(prompts()).logits, make("llama")(prompts()).logits, atol=1e-6)
    longspan.extend(again, "dca")


def test_weights_alone_are_saved_as_ever(tmp_path):
    model = extended()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    plain = make("llama")
    assert not plain.load_state_dict(torch.load(tmp_path / "weights.pt")).missing_keys


def test_a_model_made_with_an_extended_ones_config_says_so():
    model = AutoModelForCausalLM.from_config(extended().config).eval()
    for call in (lambda: longspan.extend(model, "dca"), lambda: model(prompts())):
        if model.config._attn_implementation == "longspan":
            with pytest.raises(LongspanError, match="config"):
                call()


def test_reports_are_plain_values():
    report = longspan.extend(make("llama"), "dca")
    assert pickle.loads(pickle.dumps(report)) == report == copy.deepcopy(report)
