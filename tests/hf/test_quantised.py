"""Quantised weights: what runs, and that a document knows in which form the weights were that read it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TorchAoConfig
from transformers.models.llama import modeling_llama

import longspan
from longspan.bundled import FOLDER, heldout_text
from longspan.errors import AttachError, DocumentError
from longspan.model.weights import weights_hash
from support.hf_models import make

TEXT = heldout_text()[:3000]


def nf4():
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)


def int8():
    return BitsAndBytesConfig(load_in_8bit=True)


def torchao_int8():
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def load(config, dtype=torch.bfloat16):
    return AutoModelForCausalLM.from_pretrained(
        FOLDER, quantization_config=config, dtype=dtype, device_map="cpu", attn_implementation="sdpa"
    ).eval()


def needs(package):
    pytest.importorskip(package)


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "make_config", "dtype"),
    [("bitsandbytes", nf4, torch.bfloat16), ("bitsandbytes", int8, torch.float16),
     ("torchao", torchao_int8, torch.bfloat16)],
)  # fmt: skip
def test_what_runs(tmp_path, package, make_config, dtype):
    needs(package)
    model, tokenizer = load(make_config(), dtype), AutoTokenizer.from_pretrained(FOLDER)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert ids.shape[1] > 512
    longspan.extend(model, "longheads")
    assert model.generate(ids, max_new_tokens=4, do_sample=False).shape[1] == ids.shape[1] + 4
    document = longspan.read(model, tokenizer, TEXT)
    answer = document.ask("Who?", max_new_tokens=4)
    document.save(tmp_path / "document")

    again = load(make_config(), dtype)
    longspan.extend(again, "longheads")
    opened = longspan.Document.open(tmp_path / "document", again, tokenizer)
    assert opened.ask("Who?", max_new_tokens=4).text == answer.text
    other = load(None, dtype)
    longspan.extend(other, "longheads")
    with pytest.raises(DocumentError, match="config|weights|dtype"):
        longspan.Document.open(tmp_path / "document", other, tokenizer)


@pytest.mark.long
def test_activations_that_are_rounded_differ_too_much_in_float32():
    needs("bitsandbytes")
    with pytest.raises(AttachError, match="int8 quantisation of activations|differs from the stock model"):
        longspan.extend(load(nf4(), torch.float32), "dca")


class QuantAttentionFused(nn.Module):
    """As AutoAWQ's: the projections in one, and attention with them."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states, *args, **kwargs):
        return self.inner(hidden_states), None


def test_hashing_leaves_packed_weights_alone(monkeypatch):
    """bitsandbytes' ``state_dict`` unpacks them in place, and what the next forward packs is something else."""

    def hashed(scale, offset=None):
        model = make("llama")
        monkeypatch.setattr(type(model), "state_dict", None)
        scales = SimpleNamespace(absmax=torch.ones(2), code=None, offset=offset, quant_type=None, state2=None)
        state = {"absmax": torch.tensor([scale]), "code": torch.ones(16), "quant_type": "nf4"}
        model.lm_head.weight.quant_state = SimpleNamespace(**state, state2=scales, packing_format_for_cpu=True)
        return weights_hash(model)

    one = hashed(0.5)
    assert one == hashed(0.5) and len({one, hashed(0.25), hashed(0.5, offset=torch.tensor(1.0))}) == 3


def test_fused_attention_is_refused_in_one_line():
    model = make("llama")
    for layer in model.model.layers:
        layer.self_attn = QuantAttentionFused(nn.Linear(model.config.hidden_size, model.config.hidden_size))
    with pytest.raises(AttachError, match="QuantAttentionFused computes attention by itself") as raised:
        longspan.extend(model, "dca")
    assert "\n" not in str(raised.value)


class Noisy(nn.Module):
    """A projection whose output moves with its input's last digit, as far as a code of 8 bits moves it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        out = self.inner(x)
        return out + 1e-3 * out.abs().max() * torch.sin(1e9 * out)


def noisy(dtype=torch.float32):
    torch.manual_seed(0)
    model = make("llama").to(dtype)
    for layer in model.model.layers:
        layer.self_attn.o_proj = Noisy(layer.self_attn.o_proj)
    return model


def test_a_model_that_rounds_activations_attaches_with_a_note():
    (note,) = longspan.extend(noisy(), "dca").warnings
    assert "rounds activations" in note


@pytest.mark.parametrize("make_model", [noisy, lambda: make("llama")], ids=["noisy", "exact"])
@pytest.mark.parametrize("gain", [0.97, 1.03])
def test_noise_does_not_let_another_attention_pass(monkeypatch, make_model, gain):
    def changed(own):
        def attention(*args, **kwargs):
            found = own(*args, **kwargs)
            return (found[0] * gain, *found[1:]) if isinstance(found, tuple) else found * gain

        return attention

    for place, name in (
        (torch.nn.functional, "scaled_dot_product_attention"),
        (modeling_llama, "eager_attention_forward"),
    ):
        monkeypatch.setattr(place, name, changed(getattr(place, name)))
    model = make_model()
    with pytest.raises(AttachError, match="differs from the stock model"):
        longspan.extend(model, "dca", impl="compiled")
