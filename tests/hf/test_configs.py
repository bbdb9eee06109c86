"""What a config says of the window that its model was trained on, and how much of it is taken."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import longspan
from longspan.model.window import says_window, trained_on, window_of
from support.hf_models import _COMMON, WINDOW, build, make, prompts

pytestmark = pytest.mark.hostile

QWEN_1M = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
SMALL = {"chunk_size": WINDOW, "local_size": 16, "original_max_position_embeddings": WINDOW}
LONG = 1_010_000


def qwen(block=SMALL, kind="qwen2", **more):
    return build(kind, {**_COMMON, "max_position_embeddings": LONG, "dual_chunk_attention_config": block, **more})


def theirs(i, j, chunk, local):
    """The relative positions of the rotary module that Qwen publishes for these models, clamps and all."""
    size = chunk - local
    back = i // size - j // size
    intra, succ = i % size, (i % size + size).clamp(max=chunk)
    inter = torch.full_like(i, min(2 * size - 1, chunk))
    return torch.where(back == 0, intra, torch.where(back == 1, succ, inter)) - j % size


@pytest.mark.parametrize(("chunk", "local"), [(64, 16), (64, 1), (64, 31), (64, 32), (64, 40), (64, 63), (10, 4)])
def test_the_configs_dual_chunks_are_those_of_its_makers(chunk, local):
    method = longspan.extend(qwen({"chunk_size": chunk, "local_size": local}), "dca").method
    i, j = torch.arange(300)[:, None], torch.arange(300)[None, :]
    seen = j <= i
    assert torch.equal(method.positions(chunk).rel(i, j)[seen], theirs(i, j.expand(300, 300), chunk, local)[seen])
    assert method.selection(chunk).keep(i, j)[seen].all()


def test_a_million_tokens_by_the_published_config():
    model = qwen(QWEN_1M)
    report = longspan.extend(model, "dca")
    assert (report.window, report.window_source) == (
        262144,
        f"dual_chunk_attention_config; max_position_embeddings {LONG}",
    )
    method = report.method
    assert (method.chunk_size, method.local_window, method.window) == (262144 - 8192, 8192, 262144 + 1)
    assert (method.length_scale, method.exact_queries(262144, 262144)) == (longspan.DCA.QWEN_1M, 262144)
    assert replace(method, length_scale=0).exact_queries(262144, LONG) == 262144
    assert any("0.1 ln(n / 262144) + 1" in note and "length_scale=0" in note for note in report.warnings)
    for text in (str(report), " ".join(report.warnings)):
        assert "dual_chunk_attention_config" in text
    assert json.loads(json.dumps(report.to_dict()))["window_source"] == report.window_source


@torch.no_grad()
@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_it_is_stock_inside_the_window_and_not_beyond(kind):
    ids = prompts(1, 200)
    model = qwen(kind=kind)
    stock = model(ids).logits
    report = longspan.extend(model, "dca:length_scale=0")
    ours = model(ids).logits
    assert torch.allclose(ours[:, :WINDOW], stock[:, :WINDOW], atol=1e-4)
    assert not torch.allclose(ours[:, WINDOW:], stock[:, WINDOW:], atol=1e-2)
    cache = longspan.new_cache(model)
    model(ids[:, :190], past_key_values=cache)
    then = [model(ids[:, t : t + 1], past_key_values=cache).logits for t in range(190, 200)]
    assert torch.allclose(torch.cat(then, 1), ours[:, 190:], atol=1e-4)
    assert report.window == WINDOW


@torch.no_grad()
def test_it_has_the_length_scale_of_vllm_unless_its_window_is_not_stated():
    ids, model = prompts(1, 200), qwen()
    stock = model(ids[:, :WINDOW]).logits
    found = {}
    for name in ("dca", "dca:length_scale=0.1", "dca:length_scale=0.05", "dca:length_scale=0"):
        longspan.extend(model, name)
        assert torch.allclose(model(ids[:, :WINDOW]).logits, stock, atol=1e-4)
        found[name] = model(ids).logits
    assert torch.equal(found["dca"], found["dca:length_scale=0.1"])
    for other in ("dca:length_scale=0.05", "dca:length_scale=0"):
        assert not torch.allclose(found["dca"], found[other], atol=1e-2)
    unstated = qwen({name: size for name, size in SMALL.items() if name != "original_max_position_embeddings"})
    assert longspan.extend(unstated, "dca").method.length_scale == 0


def test_auto_and_inspect_read_the_same(capsys):
    model = qwen()
    assert longspan.inspect(model).method.window == WINDOW + 1
    report = longspan.extend(model, "auto", length=4 * WINDOW)
    assert (report.method.name, report.method.chunk_size, report.window) == ("dca", 48, WINDOW)
    assert "4.0 windows of 64" in report.reason
    assert longspan.extend(model, "auto", length=WINDOW).method.name == "full"
    longspan.restore(model)
    assert window_of(model) == WINDOW
    assert longspan.extend(model, "longheads").window == WINDOW


def test_what_the_caller_says_counts_more():
    model = qwen()
    report = longspan.extend(model, "dca", window=32)
    assert (report.window, report.method.window, report.method.chunk_size) == (32, 32, 24)
    assert "is not used" in report.window_source
    assert longspan.extend(model, "dca", window=WINDOW).method.window == WINDOW + 1
    assert longspan.extend(model, longspan.DCA(chunk_size=40)).method.window == WINDOW
    method = longspan.extend(model, longspan.DCA(length_scale=0.05, angles=longspan.YaRN(factor=2))).method
    assert (method.length_scale, method.angles.factor, method.chunk_size) == (0.05, 2, 48)


def test_sparse_attention_beside_it_is_said_not_to_be_used():
    report = longspan.inspect(qwen({**SMALL, "sparse_attention_enabled": True, "sparse_attention_threshold": 32768}))
    assert any("sparse_attention_enabled, sparse_attention_threshold" in x and "not used" in x for x in report.warnings)


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"chunk_size": 64},
        {"chunk_size": 64, "local_size": 64},
        {"chunk_size": 64.0, "local_size": 16},
        {"chunk_size": -1, "local_size": 16},
        {"chunk_size": 64, "local_size": 16, "original_max_position_embeddings": "many"},
        [64, 16],
        "64",
    ],
)
def test_a_block_that_cannot_be(block):
    with pytest.raises(longspan.AttachError, match="dual_chunk_attention_config"):
        longspan.extend(qwen(block), "dca")


class Config:
    """A config with just these keys, as in models with code of their own."""

    attribute_map: dict[str, str] = {}

    def __init__(self, **keys):
        vars(self).update(keys)

    def get_text_config(self, decoder=False):
        return self


@pytest.mark.parametrize(
    "name",
    [
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "max_seq_len",
        "seq_length",
        "n_ctx",
        "model_max_length",
    ],
)
def test_other_names_of_the_window(name):
    found = trained_on(Config(**{name: 4096}))
    assert (found.window, found.source, found.notes) == (4096, name, ())
    assert says_window({name: 4096}, Config(**{name: 4096}))
    model = make("llama")
    vars(model.config)["max_position_embeddings"] = None
    setattr(model.config, name, 32)
    assert longspan.inspect(model).window == 32


@pytest.mark.parametrize("value", [None, 0, -1, "4096", 1e30, True, [4096]])
def test_values_that_are_no_window(value):
    with pytest.raises(longspan.AttachError, match="window="):
        trained_on(Config(max_position_embeddings=value))


def test_a_shorter_window_beside_the_one_taken_is_said():
    found = trained_on(Config(max_position_embeddings=32768, seq_length=8192))
    assert found.window == 32768
    assert "seq_length 8192" in found.source and "window=8192" in found.notes[0]
    assert trained_on(Config(max_position_embeddings=32768, seq_length=8192), 8192).notes == ()


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_yarn_that_reaches_beyond_the_window_is_said(key):
    yarn = {"factor": 4.0, "original_max_position_embeddings": WINDOW, "rope_theta": 10000.0}
    yarn |= {"rope_type": "yarn"} if key == "rope_parameters" else {"type": "yarn"}
    report = longspan.inspect(build("qwen2", {**_COMMON, key: yarn}))
    assert report.window == WINDOW
    assert any("YaRN stretches 64 tokens to 256" in note for note in report.warnings)
    reached = longspan.inspect(build("qwen2", {**_COMMON, "max_position_embeddings": 256, key: yarn}))
    assert (reached.window, reached.original_window, reached.warnings) == (256, WINDOW, ())
    assert "original_max_position_embeddings 64" in str(reached)


def test_windows_of_sliding_layers():
    mixed = {**_COMMON, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    report = longspan.extend(build("qwen2", mixed), "dca")
    assert ([x.index for x in report.attached], [x.index for x in report.stock]) == ([0], [1])
    assert report.window == WINDOW
    unused = {**mixed, "use_sliding_window": False}
    assert len(longspan.extend(build("qwen2", unused), "dca").attached) == 2


def test_a_config_file_that_states_only_the_dual_chunks_states_a_window():
    written = {"dual_chunk_attention_config": QWEN_1M}
    assert says_window(written, make("qwen2").config)
    assert not says_window({"hidden_size": 64}, make("qwen2").config)
    assert not says_window({"seq_length": 64}, make("qwen2").config), "its class has a default that would be taken"


@pytest.mark.parametrize("method", ["dca:angles=yarn", "ntk", "dynamic-ntk"])
def test_too_few_rotated_channels_for_scaled_angles_are_said_at_once(method):
    model = build("gpt_neox", {**_COMMON, "head_dim": 8, "hidden_size": 32, "rotary_pct": 0.25})  # 2 of 8
    with pytest.raises(longspan.AttachError, match=r"layers\.0\.attention: .* needs at least 4 rotated .*longspan\.PI"):
        longspan.extend(model, method)
    assert longspan.extend(model, "pi").attached
