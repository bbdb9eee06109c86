"""A cache off the device, on a model: the same tokens, and clear words where it cannot be."""

from __future__ import annotations

import copy
import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import longspan
from longspan.errors import CacheError
from longspan.hf import tiers
from longspan.hf.cache import StoreLayer
from longspan.memory import KVStore
from support.hf_models import left_padded, make, prompts


@pytest.fixture(scope="module")
def model():
    return make("llama")


@pytest.mark.parametrize(("tier", "method"), [("host", "dca"), ("disk", "dca"), ("disk", "self-extend")])
def test_the_same_tokens(model, tier, method, tmp_path):
    ids, mask, _ = left_padded(prompts().repeat(1, 4), [7, 0])
    options = {"attention_mask": mask, "max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None}
    modes = [{"do_sample": False}, {"do_sample": False, "num_beams": 2}, {"do_sample": False, "prefill_chunk_size": 17}]
    with longspan.extended(model, method):
        expected = [model.generate(ids, **options, **mode) for mode in modes]
    with longspan.extended(model, method, kv_tier=tier, kv_dir=tmp_path if tier == "disk" else None):
        for mode, tokens_expected in zip(modes, expected, strict=True):
            assert torch.equal(model.generate(ids, **options, **mode), tokens_expected)


@pytest.mark.parametrize("method", ["dca", longspan.LongHeads(chunk_length=4, num_chunks=4), "esa"])
def test_a_cache_that_moves_in_the_middle_gives_the_same_tokens(model, method, tmp_path, monkeypatch):
    ids = prompts(1).repeat(1, 4)
    options = {"max_new_tokens": 90, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with longspan.extended(model, method):  # in the same calls, which some methods' choices depend on
        model(ids[:, :-1], past_key_values=(whole := longspan.new_cache(model)))
        expected = model.generate(ids, past_key_values=whole, **options)
    report = longspan.extend(model, method, kv_tier="auto", kv_dir=tmp_path)
    said = " ".join(str(report).split())
    assert report.kv_tier == "auto" and "when memory runs short in host memory, then in mapped files" in said
    free = [10**9]
    # The test sets how much memory is free.
    monkeypatch.setattr(tiers, "free_memory", lambda device: free[0])
    cache = longspan.new_cache(model)
    model(ids[:, :-1], past_key_values=cache)
    assert cache.bytes_by_tier["disk"] == 0
    free[0] = 0
    with pytest.warns(UserWarning, match="so keys and values move from tier 'device' to 'disk'"):
        found = model.generate(ids, past_key_values=cache, **options)
    assert torch.equal(found, expected) and cache.bytes_by_tier["disk"] > 0
    longspan.restore(model)


@pytest.mark.parametrize("method", ["dca", longspan.LongHeads(chunk_length=4, num_chunks=4), "infllm", "esa"])
def test_a_copy_made_in_inference_mode_goes_on_anywhere(model, method):
    ids = prompts(1).repeat(1, 4)
    with longspan.extended(model, method):
        expected = model(ids).logits[:, -1]
        with torch.inference_mode():
            cache = longspan.new_cache(model)
            model(ids[:, :-9], past_key_values=cache)
            twins = [copy.deepcopy(cache), copy.deepcopy(cache)]
            whole = model(ids[:, -9:], past_key_values=cache).logits[:, -1]
            assert torch.equal(model(ids[:, -9:], past_key_values=twins[0]).logits[:, -1], whole)
        with torch.no_grad():
            assert torch.equal(model(ids[:, -9:], past_key_values=twins[1]).logits[:, -1], whole)
        if not isinstance(method, str) or method == "dca":
            torch.testing.assert_close(whole, expected)


def test_a_kept_document(model, tmp_path):
    """A cache on disk that is filled once, copied for one question and cropped for another."""
    text, question = prompts(1), prompts(1)[:, :5]
    ids = torch.cat((text, question), dim=1)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with longspan.extended(model, "dca"):
        expected = model.generate(ids, **options)
    report = longspan.extend(model, "dca", kv_tier="disk", kv_dir=tmp_path)
    try:
        cache = longspan.new_cache(model)
        assert all(layer.store.tier == "disk" and layer.store.directory == tmp_path for layer in cache.layers)
        assert all(layer.store.window == report.window for layer in cache.layers)
        model(text, past_key_values=cache)
        assert torch.equal(model.generate(ids, past_key_values=copy.deepcopy(cache), **options), expected)
        assert cache.get_seq_length() == text.shape[1]
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
        cache.crop(text.shape[1] - cache.get_seq_length())
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
        assert cache.bytes_by_tier == {"device": 0, "host": 0, "disk": cache.nbytes} and cache.nbytes > 0
        cache.reset()
        assert cache.nbytes == 0
    finally:
        longspan.restore(model)
    assert (report.kv_tier, report.kv_dir) == ("disk", tmp_path)
    assert report.to_dict()["kv_tier"] == "disk" and report.to_dict()["kv_dir"] == str(tmp_path)
    assert "in mapped files in" in str(report)


def test_the_report_names_the_tier(model):
    assert "on the device" in str(longspan.inspect(model, "full"))
    report = longspan.inspect(model, "full", kv_tier="host")
    assert "in host memory" in str(report) and (report.kv_tier, report.kv_dir) == ("host", None)


def test_a_relative_folder_is_made_absolute(model, tmp_path, monkeypatch):
    """Caches are made later, when the working folder may be another."""
    monkeypatch.chdir(tmp_path)
    assert longspan.inspect(model, "full", kv_tier="disk", kv_dir=".").kv_dir == tmp_path.resolve()


def test_extend_refuses(model, tmp_path, monkeypatch):
    for given, match in (
        ({"kv_tier": "tape"}, "kv_tier must be one of"),
        ({"kv_tier": "host", "kv_dir": tmp_path}, "kv_dir is for"),
        ({"kv_tier": "disk", "kv_dir": tmp_path / "no"}, "is not a folder"),
    ):
        with pytest.raises(ValueError, match=match):
            longspan.extend(model, "full", **given)

    def unwritable(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    # Permissions do not bind root, which tests may run as.
    monkeypatch.setattr(tiers.tempfile, "TemporaryFile", unwritable)
    with pytest.raises(ValueError, match=r"cannot be written to \(Permission denied\); pass"):
        longspan.extend(model, "full", kv_tier="disk", kv_dir=tmp_path)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_gpu_needs_a_method_that_selects(tier):
    tiers.refuse_offloaded("device", torch.device("cuda"), False)
    tiers.refuse_offloaded(tier, torch.device("cuda"), True)
    tiers.refuse_offloaded(tier, torch.device("cpu"), False)
    module = torch.nn.Linear(2, 2)
    module.child = torch.nn.Linear(2, 2, device="meta")
    module.child._hf_hook = SimpleNamespace(execution_device="cuda:1")  # as accelerate leaves offloaded weights
    layer = SimpleNamespace(rope=object(), module=module, sliding=None)
    static, selecting = SimpleNamespace(selects=False), SimpleNamespace(selects=True)
    with pytest.raises(CacheError, match=f"kv_tier='{tier}' keeps the cache off cuda:1.*a method that selects"):
        tiers.prepare_tier(static, [layer], tier, None)
    tiers.prepare_tier(selecting, [layer], tier, None)
    tiers.prepare_tier(static, [layer], "device", None)
    module.child._hf_hook.execution_device = "cpu"
    tiers.prepare_tier(static, [layer], tier, None)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Layers count as a GPU's, which nothing is run on."""
    # No GPU is at hand.
    monkeypatch.setattr(tiers, "devices_of", lambda module: [torch.device("cuda:1")])


@pytest.mark.parametrize("method", ["full", "dca", "streaming-llm"])
def test_auto_stays_on_a_gpu_whose_method_reads_every_key_there(model, on_a_gpu, method, tmp_path):
    report = longspan.inspect(model, method, kv_tier="auto", kv_dir=tmp_path)
    assert (report.kv_tier, report.kv_dir) == ("device", None)
    (said,) = (one for one in report.warnings if "kv_tier" in one)
    assert said.startswith(f"kv_tier='auto' keeps the cache on cuda:1 however short its memory runs: {method} reads")
    with pytest.raises(CacheError, match="kv_tier='host' keeps the cache off cuda:1"):
        longspan.inspect(model, method, kv_tier="host")


@pytest.mark.parametrize("method", ["longheads", "esa", "infllm"])
def test_auto_may_leave_a_gpu_whose_method_selects(model, on_a_gpu, method, tmp_path):
    report = longspan.inspect(model, method, kv_tier="auto", kv_dir=tmp_path)
    assert (report.kv_tier, report.kv_dir) == ("auto", tmp_path)
    assert not [one for one in report.warnings if "kv_tier" in one]


def test_one_tier_is_asked_of_several_methods(model, on_a_gpu):
    """As of ``longspan eval --methods dca,longheads --kv-tier auto``."""
    for name in ("dca", "longheads"):
        with longspan.extended(model, name, kv_tier="auto"):
            assert longspan.new_cache(model).layers[0].store.spill is None or name == "longheads"


def test_a_model_that_was_moved_afterwards():
    k = torch.empty(1, 2, 3, 4, device="meta")
    with pytest.raises(CacheError, match="kv_tier='host' keeps the cache off meta"):
        StoreLayer(KVStore("host"), selects=False).update(k, k)
    StoreLayer(KVStore("host"), selects=True).update(k, k)
    StoreLayer(KVStore(), selects=False).update(k, k)


def test_stock_layers_are_named():
    report = longspan.inspect(make("smollm3"), "dca", kv_tier="host")
    assert any("the cache of 1 stock layers stays on the device" in warning for warning in report.warnings)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no such folder")
def test_a_folder_in_memory_is_named(model):
    if tiers.file_system(Path("/dev/shm")) != "tmpfs":
        pytest.skip("/dev/shm is not in memory here")
    report = longspan.inspect(model, "full", kv_tier="disk", kv_dir="/dev/shm")
    assert any("kept in memory by the system (tmpfs)" in warning for warning in report.warnings)
