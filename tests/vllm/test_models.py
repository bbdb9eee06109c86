"""Kinds of models in vLLM with longspan: equal to longspan on transformers, or refused at the start with the reason."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

import longspan
from longspan.model.report import Report
from longspan.vllm import installed
from support.hf_models import _COMMON, FAMILIES, VOCABULARY, build
from support.vllm_engine import answers

pytest.importorskip("vllm.v1")
pytestmark = pytest.mark.long

LENGTHS = (9, 63, 150, 333, 500)
NEW = 6
LONGEST = 512  # beyond what every model's config has, so vLLM has to be told that this is meant
DUAL = {"chunk_size": 64, "local_size": 16, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 32}

# The model, what differs from the common sizes, what is asked of longspan in vLLM and on transformers.
MODELS = {
    "qwen2-1m": ("qwen2", {"dual_chunk_attention_config": DUAL, "max_position_embeddings": 256}, None, "dca"),
    "llama3-scaled": ("llama", {"rope_parameters": LLAMA3}, "dca", "dca"),
    "yarn-scaled": ("llama", {"rope_parameters": YARN}, "dca", "dca"),
    "key-and-query-norms": ("qwen3", {}, {"method": "dca", "chunk_size": 40}, longspan.DCA(chunk_size=40)),
    "partial-rotation": ("stablelm", {"partial_rotary_factor": 0.25, "use_qkv_bias": True}, "string", "string"),
    "interleaved": ("cohere", {}, "dca:angles=yarn,factor=2", longspan.DCA(angles=longspan.YaRN(factor=2))),
    "chosen-chunks": (
        "llama",
        {},
        {"method": "longheads", "score": "bounds", "remap": "dca", "chunk_length": 16, "num_chunks": 4},
        longspan.LongHeads(score="bounds", remap="dca", chunk_length=16, num_chunks=4),
    ),
    "streaming": ("llama-mha", {}, "streaming-llm", "streaming-llm"),
}


def made(kind, own):
    kind, more = FAMILIES[kind]
    return build(kind, {**_COMMON, **more, **own, "attention_dropout": 0.0})


def asked(settings):
    return {} if settings is None else {"longspan": settings}


def prompts():
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCABULARY, (length,), generator=draw).tolist() for length in LENGTHS]


def run(folder, model, settings, **engine):
    model.save_pretrained(folder / "model")
    return answers(
        folder,
        folder / "model",
        [prompts()],
        NEW,
        max_model_len=LONGEST,
        max_num_batched_tokens=128,
        block_size=16,
        additional_config=asked(settings),
        **engine,
    )


def logprobs(model, prompt, tokens):
    """Of the answer's tokens and of the best ones, where the model has read what is before each."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens[:-1]]), logits_to_keep=len(tokens)).logits[0].float()
    logprobs = logits.log_softmax(dim=-1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0], logprobs.argmax(dim=-1).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(name, tmp_path):
    kind, own, settings, method = MODELS[name]
    model = made(kind, own)
    found = run(tmp_path, model, settings)
    assert "error" not in found, found["log"][-3000:]
    assert found["attention"] == ["LongspanImpl"]
    report = longspan.extend(model, method, impl="reference")
    assert isinstance(report, Report) and not report.stock
    for prompt, answer in zip(prompts(), found["batches"][0], strict=True):
        own_logprobs, best = logprobs(model, prompt, answer["tokens"])
        assert (torch.tensor(answer["logprobs"]) - own_logprobs).abs().max() < 1e-3
        assert answer["tokens"] == best


def test_compiled_as_the_server_runs_it_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "compiled"))
    found = run(tmp_path, model := made("llama", {}), "dca", enforce_eager=False)
    assert "error" not in found, found["log"][-3000:]
    longspan.extend(model, "dca", impl="reference")
    for prompt, answer in zip(prompts(), found["batches"][0], strict=True):
        assert answer["tokens"] == logprobs(model, prompt, answer["tokens"])[1]


def test_the_config_of_dual_chunks_is_followed(tmp_path):
    """Nothing is asked but by the config: its chunks are those that run."""
    kind, own, _, _ = MODELS["qwen2-1m"]
    model = made(kind, own)
    report = longspan.extend(model, "dca")
    size = DUAL["chunk_size"] - DUAL["local_size"]
    assert (report.method.chunk_size, report.method.local_window) == (size, DUAL["local_size"])
    found = run(tmp_path, made(kind, own), None)
    assert "error" not in found, found["log"][-3000:]
    assert f"chunk_size    {size}" in found["log"] and "the config has dual_chunk_attention_config" in found["log"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reduced_dtypes(dtype, tmp_path):
    """No farther from fp32 than transformers in that dtype, by a small multiple."""
    found = run(tmp_path, made("llama", {}), "dca", dtype=dtype)
    assert "error" not in found, found["log"][-3000:]
    exact, reduced = made("llama", {}), made("llama", {}).to(getattr(torch, dtype))
    longspan.extend(exact, "dca")
    longspan.extend(reduced, "dca")
    for prompt, answer in zip(prompts(), found["batches"][0], strict=True):
        truth, _ = logprobs(exact, prompt, answer["tokens"])
        plain, _ = logprobs(reduced, prompt, answer["tokens"])
        unit = 4 * torch.finfo(getattr(torch, dtype)).eps
        assert (torch.tensor(answer["logprobs"]) - truth).abs().max() <= 4 * (plain - truth).abs().max() + unit


def engine(**stated):
    parallel = ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size")
    ranks = dict.fromkeys((*parallel, "tensor_parallel_size"), 1)
    others = dict.fromkeys(("speculative_config", "kv_transfer_config"))
    sizes = {name: stated.pop(name) for name in list(stated) if name in ranks}
    return SimpleNamespace(parallel_config=SimpleNamespace(**ranks | sizes), **others | stated)


def attached(config, layers=None, **stated):
    """``attach`` on a model of these layers by path, or of one that keeps a state."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    from longspan.vllm.settings import asked as read
    from longspan.vllm.since_0_29.model import attach

    class MambaMixer(nn.Module, AttentionLayerBase):
        """Keeps a state in place of keys: vLLM gives it no ``impl``."""

        def get_attn_backend(self):
            raise NotImplementedError

        def get_kv_cache_spec(self, vllm_config):
            raise NotImplementedError

    model = nn.Module()
    model.rest = nn.Linear(2, 2)
    for path, layer in (layers or {"mixer": MambaMixer()}).items():
        *parents, last = path.split(".")
        inner = model
        for name in parents:
            inner.add_module(name, nn.Module())
            inner = getattr(inner, name)
        inner.add_module(last, layer)
    facts = SimpleNamespace(hf_text_config=config, max_model_len=256, dtype=torch.float32)
    return attach(model, engine(**stated), facts, read({"longspan": "dca"}))


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"speculative_config": {}}, "speculative decoding is not supported"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism is not supported"),
        ({"decode_context_parallel_size": 2}, "context parallelism is not supported"),
        ({"kv_transfer_config": {}}, "leave --kv-transfer-config out"),
        ({}, "mixer: longspan runs vLLM's Attention, and this layer is MambaMixer; start vLLM with"),
    ],
)
def test_what_it_cannot_do_is_said_in_one_line(stated, reason):
    with pytest.raises(longspan.AttachError, match=reason) as error:
        attached(LlamaConfig(max_position_embeddings=256), **stated)
    assert "\n" not in str(error.value)


OTHER_LAYERS = {
    "alibi": ({"alibi_slopes": [0.5]}, {}, "it has ALiBi slopes"),
    "encoder": ({}, {"attn_type": "encoder_only"}, "this one is of type encoder_only"),
    "sliding": ({}, {"sliding_window": 64}, "it sees a sliding window"),
    "sinks": ({}, {"has_sink": True}, "it has sink logits"),
    "shared": ({}, {"kv_sharing_target_layer_name": "other"}, "it shares the keys of another layer"),
    "quantised": ({}, {"kv_cache_dtype": "fp8", "kv_cache_torch_dtype": torch.uint8}, "are stored as fp8"),
}


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_a_layer_of_another_kind_is_refused_by_its_place(name):
    from vllm.model_executor.layers.attention import Attention

    of_impl, own, reason = OTHER_LAYERS[name]
    layer = Attention.__new__(Attention)  # the facts that are asked for, without an engine
    nn.Module.__init__(layer)
    impl = SimpleNamespace(**{"scale": 1.0, "logits_soft_cap": None, "alibi_slopes": None} | of_impl)
    facts = {"attn_type": "decoder", "sliding_window": None, "has_sink": False, "kv_sharing_target_layer_name": None}
    facts |= {"head_size": 16, "head_size_v": 16, "use_mm_prefix": False, "kv_cache_dtype": "auto"}
    for key, value in ({"impl": impl, "kv_cache_torch_dtype": torch.float32} | facts | own).items():
        setattr(layer, key, value)
    with pytest.raises(longspan.AttachError, match=f'layers.3.attn: .*{reason}; start vLLM with .*"longspan": null'):
        attached(LlamaConfig(max_position_embeddings=256), {"layers.3.attn": layer})


def test_mla_is_refused_by_its_place():
    from vllm.model_executor.layers.attention import MLAAttention

    layer = MLAAttention.__new__(MLAAttention)
    nn.Module.__init__(layer)
    with pytest.raises(longspan.AttachError, match="layers.3.attn: .*this layer is MLAAttention"):
        attached(LlamaConfig(max_position_embeddings=256), {"layers.3.attn": layer})


def test_a_config_of_dual_chunks_that_says_too_little_names_the_way_out():
    config = LlamaConfig(dual_chunk_attention_config={"chunk_size": 64})
    with pytest.raises(longspan.AttachError, match='both are needed.*"longspan": null'):
        attached(config)


def test_compiled_code_without_longspan_is_not_that_with_it():
    from vllm.config import VllmConfig

    from longspan.vllm.since_0_29 import register

    register()
    hashes = [VllmConfig(additional_config=asked(one)).compute_hash() for one in (None, "dca", "dca", "string")]
    assert hashes[1] == hashes[2] and len(set(hashes)) == 3
    plain = VllmConfig.compute_hash.__wrapped__
    assert plain(VllmConfig()) == hashes[0] and plain(VllmConfig(additional_config=asked("dca"))) != hashes[1]


# Of a model that vLLM runs by transformers' code: from 0.32 on its attention is among the modules.
BY_TRANSFORMERS = (
    "TransformersForCausalLM has no attention layer that longspan knows"
    if installed().startswith("0.29.")
    else r"layers\.0\.self_attn\.attn: no rotation of queries and keys beside this layer"
)
REFUSED = {
    "mistral-sliding": ({}, "dca", {}, r"layers\.0\.self_attn\.attn: it sees a sliding window"),
    "hunyuan_v1_dense": ({}, "dca", {}, BY_TRANSFORMERS),
    "llama": ({}, "longheads", {}, "longheads cannot run, because it chooses keys by more than"),
    "qwen3": ({}, "longheads:score=bounds,remap=dca,chunk_length=4", {}, r"pages have 16.* --block-size 4"),
    "llama-mha": ({}, {"method": "dca", "chunk": 3}, {}, "dca has no parameter 'chunk'"),
    "qwen2": ({}, "dca", {"kv_cache_dtype": "fp8"}, "stored as fp8"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_it_cannot_do_is_refused_at_the_start(kind, tmp_path):
    own, settings, engine, reason = REFUSED[kind]
    found = run(tmp_path, made(kind, own), settings, **engine)
    assert re.search(reason, found.get("error", "")), (found.get("error"), found["log"][-2000:])
