"""What people pass for a model: wrappers are taken off where that is safe, anything else gets one line."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    T5Config,
    TextGenerationPipeline,
    pipeline,
)

import longspan
from longspan.errors import AttachError, LongspanError
from longspan.hf.argument import CACHE_ARGUMENT
from support.hf_models import make, prompts

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("no_gradients")]


def meta():
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(make("llama").config)


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 128}
    return AutoModelForSeq2SeqLM.from_config(T5Config(**sizes))


def bart():
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 128}
    return AutoModelForSeq2SeqLM.from_config(BartConfig(**sizes, **heads))


def indexed():
    """As DeepSeek V3.2 and GLM 5 choose keys, in models that not every version of transformers has."""
    model = make("llama")
    model.model.layers[1].self_attn.indexer = nn.Linear(1, 1)
    return model


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = make("llama")


NONE = {
    "name": (lambda: "meta-llama/Llama-2-7b-hf", r"is a name.*longspan\.load\('meta-llama"),
    "None": (lambda: None, "None was passed"),
    "class": (lambda: type(make("llama")), "is a class.*LlamaForCausalLM.from_pretrained"),
    "auto class": (lambda: AutoModelForCausalLM, "is a class"),
    "pair": (lambda: (make("llama"), "tokenizer"), "tuple.*without its tokenizer"),
    "list": (lambda: [make("llama")], "a list is not a model"),
    "weights": (lambda: make("llama").state_dict(), "OrderedDict|a dict is not a model"),
    "config": (lambda: make("llama").config, "not LlamaConfig"),
    "number": (lambda: 7, "not int"),
    "layer": (lambda: make("llama").model.layers[0], "not LlamaDecoderLayer"),
    "holder": (Holder, "extend the one inside it, its part 'inner'"),
    "parallel": (lambda: nn.DataParallel(make("llama")), "extend model.module"),
    "meta": (meta, "embed_tokens.weight is on the device 'meta'.*from_pretrained"),
    "t5": (t5, "encoder-decoder"),
    "bart": (bart, "encoder-decoder"),
    "indexed": (indexed, r"layers\.1\.self_attn \(LlamaAttention\) selects the keys .* with an indexer of its own"),
}


@pytest.mark.parametrize("call", [longspan.extend, longspan.inspect])
@pytest.mark.parametrize("what", NONE)
def test_what_is_no_model_gets_one_line(what, call):
    thing, says = NONE[what]
    with pytest.raises(AttachError, match=says) as error:
        call(thing())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "call",
    [
        longspan.restore,
        longspan.new_cache,
        lambda m: longspan.extended(m).__enter__(),
        lambda m: longspan.graphed(m).__enter__(),
        lambda m: longspan.record(m).__enter__(),
        lambda m: longspan.calibrate(m, [torch.arange(100)]),
        lambda m: longspan.read(m, len, "A text."),
        lambda m: longspan.Document.open("a.longspan", m, len),
        lambda m: longspan.progress(m).__enter__(),
    ],
)
@pytest.mark.parametrize("thing", ["name", None, (1, 2), int])
def test_so_does_the_rest_of_the_library(call, thing):
    with pytest.raises(LongspanError, match=r"name; load|None was passed|tuple is not a model|is a class"):
        call(thing)


def test_a_diagnosis_needs_a_model_or_none():
    with pytest.raises(AttachError, match="is a name"):
        longspan.diagnose("name", length=100)


def test_what_cannot_be_extended_is_diagnosed_and_watched():
    from peft import PromptTuningConfig, get_peft_model

    tuned = get_peft_model(make("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    assert "prepends learned tokens" in longspan.diagnose(tuned, length=600).model_facts.refusal
    with longspan.progress(tuned), torch.no_grad():
        tuned(input_ids=prompts(1, 20))


@pytest.mark.parametrize("what", ["name", "None", "model"])
def test_what_is_no_tokenizer_gets_one_line(what):
    model = make("llama")
    given = {"name": "meta-llama/Llama-2-7b-hf", "None": None, "model": model}[what]
    for call in (lambda: longspan.read(model, given, "A text."), lambda: longspan.Document.open("a", model, given)):
        with pytest.raises(longspan.DocumentError, match="the tokenizer is .*pass the model and then its tokenizer"):
            call()


def test_a_pipeline_reads_and_is_diagnosed_as_its_model():
    model, tokenizer = longspan.load_bundled()
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    assert longspan.diagnose(pipe, length=600).ok
    assert longspan.read(pipe, tokenizer, "A text. " * 100).ask("What?", 3).text


def test_a_decoder_without_its_head_runs_and_says_what_generate_needs():
    model = make("llama")
    ids = prompts(1, 80)
    whole = make("llama")
    longspan.extend(whole, "dca")
    report = longspan.extend(model.model, "dca")
    assert any("no language-model head; for generate, extend the complete model" in note for note in report.warnings)
    assert torch.equal(model(ids).logits, whole(ids).logits)
    with pytest.raises(LongspanError, match="decoder alone was extended: for generate"):
        model.generate(ids, max_new_tokens=2)
    with pytest.raises(LongspanError, match="submodule of an extended model"):
        longspan.extend(model, "dca")
    longspan.restore(model.model)
    assert torch.allclose(model(ids).logits, make("llama")(ids).logits, atol=1e-5)


def run_like_the_model_inside(wrapper, inner, note):
    """Extended, asked, and restored through the wrapper."""
    ids = prompts(1, 80)
    plain = make("llama")
    longspan.extend(plain, "dca")
    report = longspan.extend(wrapper, "dca")
    assert any(f"inside {note}" in text for text in report.warnings)
    assert torch.allclose(inner(ids).logits, plain(ids).logits, atol=1e-5)
    with longspan.extended(wrapper, "rerope"):
        assert not torch.allclose(inner(ids).logits, plain(ids).logits, atol=1e-3)
    cache = longspan.new_cache(wrapper)
    inner(ids, past_key_values=cache)
    assert cache.get_seq_length() == 80
    with pytest.raises(LongspanError, match="already extended"):
        longspan.inspect(wrapper)
    longspan.restore(wrapper)
    assert torch.allclose(inner(ids).logits, make("llama")(ids).logits, atol=1e-5)


def test_a_pipeline():
    model = make("llama")
    wrapper = TextGenerationPipeline.__new__(TextGenerationPipeline)  # without a tokenizer, of which none is so small
    wrapper.model = model
    run_like_the_model_inside(wrapper, model, "TextGenerationPipeline")


def test_a_pipeline_of_the_bundled_model_generates():
    model, tokenizer = longspan.load_bundled()
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    longspan.extend(pipe, "dca")
    text = pipe("It was a long day. " * 150, max_new_tokens=4, do_sample=False)[0]["generated_text"]
    longspan.restore(pipe)
    assert len(text) > len("It was a long day. " * 150)


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model = make("llama")
        run_like_the_model_inside(nn.parallel.DistributedDataParallel(model), model, "DistributedDataParallel")
    finally:
        torch.distributed.destroy_process_group()


def test_peft():
    peft = pytest.importorskip("peft")
    model = make("llama")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    torch.manual_seed(0)
    wrapper = peft.get_peft_model(model, config).eval()
    ids = prompts(1, 80)
    stock = wrapper(ids).logits
    report = longspan.extend(wrapper, "full")
    assert any("inside PeftModelForCausalLM" in note for note in report.warnings)
    assert torch.allclose(wrapper(ids).logits, stock, atol=1e-4)
    longspan.extend(wrapper, "dca")
    assert torch.allclose(wrapper(ids).logits[:, :64], stock[:, :64], atol=1e-4)
    out = wrapper.generate(input_ids=ids, max_new_tokens=3, do_sample=False)
    assert torch.equal(out, model.generate(ids, max_new_tokens=3, do_sample=False))
    longspan.restore(wrapper)
    assert torch.equal(wrapper(ids).logits, stock)
    prefix = peft.get_peft_model(make("llama"), peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(AttachError, match="prepends learned tokens"):
        longspan.extend(prefix, "dca")


def test_learned_keys_around_an_extended_model_are_refused():
    peft = pytest.importorskip("peft")
    model = make("llama")
    longspan.extend(model, "dca")
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    prefix = peft.get_peft_model(model, config).eval()
    refused = "is a DynamicCache, which an extended model cannot use"
    # Since transformers 5.24 PEFT leaves the cache that generate gives where it is, and adds its own by the old name.
    twice = "has two caches, a LongspanCache as cache and a DynamicCache as past_key_values; .*PEFT"
    for call, words in ((prefix, refused), (prefix.generate, twice if CACHE_ARGUMENT == "cache" else refused)):
        with pytest.raises(longspan.CacheError, match=words):
            call(input_ids=prompts(1, 80))


def test_a_model_that_fsdp_holds_is_extended_before(tmp_path):
    """FSDP keeps its weights flat, or parts of them, between forwards: what it holds does not run by itself."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        wrapper = FullyShardedDataParallel(make("llama"), device_id=torch.device("cpu"))
        with pytest.raises(AttachError, match="FullyShardedDataParallel .*extend the model before it is wrapped"):
            longspan.extend(wrapper, "dca")
        model, plain, ids = make("llama"), make("llama"), prompts(1, 80)
        longspan.extend(model, "dca")
        longspan.extend(plain, "dca")
        wrapper = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        assert torch.allclose(wrapper(ids).logits, plain(ids).logits, atol=1e-5)
        with pytest.raises(AttachError, match="pass longspan the model itself, the part 'module'"):
            longspan.new_cache(wrapper)
        cache = longspan.new_cache(wrapper.module)
        wrapper(ids[:, :-1], past_key_values=cache)
        assert torch.allclose(wrapper(ids[:, -1:], past_key_values=cache).logits, plain(ids).logits[:, -1:], atol=1e-5)
        longspan.restore(wrapper.module)
        assert torch.allclose(wrapper(ids).logits, make("llama")(ids).logits, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize("where", ["cpu", "disk"])
@pytest.mark.parametrize(("family", "method"), [("llama", "dca"), ("llama", "longheads"), ("hunyuan_v1_dense", "full")])
def test_offloaded_by_accelerate(where, buffers, family, method, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    ids = prompts(2, 80)
    plain, model = make(family), make(family)
    stock = plain(ids).logits
    longspan.extend(plain, method)
    want, tokens = plain(ids).logits, plain.generate(ids, max_new_tokens=3, do_sample=False)
    if where == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=buffers)
    else:
        accelerate.disk_offload(model, str(tmp_path), execution_device="cpu", offload_buffers=buffers)
    assert all(p.device.type == "meta" for p in model.parameters())
    report = longspan.extend(model, method)
    assert len(report.attached) == 2
    assert torch.allclose(model(ids).logits, want, atol=1e-5)
    assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), tokens)
    assert longspan.extend(model, "auto", length=640).method.name == "dca"
    longspan.restore(model)
    assert torch.allclose(model(ids).logits, stock, atol=1e-5)


def test_loaded_with_a_device_map_onto_the_disk(tmp_path):
    pytest.importorskip("accelerate")
    make("llama").save_pretrained(tmp_path / "model")
    where = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
    where |= {"lm_head": "cpu", "model.rotary_emb": "cpu"}
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=where, offload_folder=str(tmp_path / "weights")
    ).eval()
    assert any(p.device.type == "meta" for p in model.parameters())
    ids = prompts(1, 80)
    plain = make("llama")
    longspan.extend(plain, "dca")
    longspan.extend(model, "dca")
    assert torch.allclose(model(ids).logits, plain(ids).logits, atol=1e-5)
