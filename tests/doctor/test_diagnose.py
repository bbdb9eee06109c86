"""The whole of it: on the bundled model, and on models that have something wrong with them."""

from __future__ import annotations

import json
from itertools import accumulate, count
from types import SimpleNamespace

import pytest
import torch

import longspan
from longspan.bundled import FOLDER, load_bundled
from longspan.doctor import examine, measuring, page
from longspan.doctor.machine import look
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.methods.parse import parse_method
from support.hf_models import WINDOW, falcon, gpt2, make, prompts


@pytest.fixture(scope="module")
def bundled():
    return load_bundled()[0]


@pytest.fixture(scope="module")
def found(bundled):
    return longspan.diagnose(bundled, length=20_000, name="my model")


@pytest.fixture
def model():
    return make("llama")


def keys(value):
    """The keys of nested objects, and the kinds of what stands at their ends."""
    if isinstance(value, dict):
        return {key: keys(part) for key, part in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value else []
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


POINT = dict.fromkeys(("start", "stop", "seconds"), "number")
INTERVAL = dict.fromkeys(("low", "high"), "number")
SCHEMA = {
    "run": {"clock": "str", "prefill_chunks": [POINT], "tokens": [POINT], "passes": "number", "seconds": "number"},
    "needs": dict.fromkeys(("length", "weights", "keys_and_values", "stock", "index", "recent"), "number"),
    "estimate": {
        **dict.fromkeys(("prefill_seconds", "token_seconds"), INTERVAL),
        "growth": "str",
        "prefill_chunk": "number",
        "checks": [{"what": "str", **dict.fromkeys(("start", "stop", "seconds", "low", "high"), "number")}],
    },
    "recommendation": {"method": "str", "kv_tier": "str", "why": "str", "commands": ["str"]},
    "short_prompts": {**dict.fromkeys(("tokens", "exact", "difference", "budget"), "number"), "holds": "bool"},
}
TOP = ["version", "ok", "machine", "model", "length", "report", "needs", "tiers", "run", "estimate", "no_estimate"]
TOP += ["short_prompts", "recommendation"]
MACHINE = ["system", "processor", "cores", "threads", "memory_total", "memory_free", "memory_limited"]
MACHINE += ["disk", "disk_free", "disk_in_memory", "gpus", "kernels"]
MODEL = ["model", "family", "dtype", "device", "weights", "form", "window", "window_source", "attached", "stock"]
MODEL += ["dual_chunks", "rope_scaling", "refusal"]


def test_the_json_keeps_its_form(found):
    made = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(made) == TOP and made["version"] == 3 and made["length"] == 20_000
    assert list(made["machine"]) == MACHINE and list(made["model"]) == MODEL
    assert {key: keys(made[key]) for key in SCHEMA} == SCHEMA
    assert [fit["tier"] for fit in made["tiers"]] == ["device", "host", "disk"]


@pytest.mark.parametrize("given", [None, "refused"])
def test_the_json_has_all_keys_where_there_is_nothing_to_say(given):
    made = longspan.diagnose(None if given is None else gpt2()).to_dict()
    assert list(made) == TOP and made["recommendation"] is None and made["tiers"] == []
    assert made["ok"] is (given is None)


def test_the_bundled_model(found, bundled):
    assert found.ok and found.model_facts.window == 512
    assert found.model_facts.attached == tuple(range(bundled.config.num_hidden_layers))
    assert found.advice.method == "esa:share=group" and found.advice.kv_tier == "device"
    assert "selection is faster" in found.advice.why
    assert 0 < found.estimate.prefill_seconds.low < found.estimate.prefill_seconds.high
    assert 0 < found.estimate.token_seconds.low < found.estimate.token_seconds.high
    assert 512 < found.run.length < 20_000 and all(check.holds for check in found.estimate.checks)
    assert found.short_prompts.holds and found.short_prompts.exact == found.short_prompts.tokens <= 512
    assert found.needs.keys_and_values == 20_000 * found.report.kv_bytes_per_token
    assert bundled.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("seconds", [0.2, 0.6])
def test_a_limit_that_leaves_no_estimate(bundled, seconds):
    """By a clock of a quarter second a forward, which the first one exceeds, or a chunk of many to come."""
    lines = []
    found = longspan.diagnose(bundled, length=20_000, seconds=seconds, say=lines.append)
    assert found.estimate is None and found.no_estimate and found.run is None and lines
    assert not found.ok and found.advice.kv_tier is None and not found.advice.commands
    assert found.advice.why == found.no_estimate in " ".join(str(found).split())


def test_times_that_cannot_be_told_recommend_nothing(bundled, monkeypatch):
    clock = accumulate(2.0**n for n in count())
    monkeypatch.setattr(measuring, "_clock", lambda device: (clock.__next__, "cpu"))
    found = longspan.diagnose(bundled, length=20_000)
    assert found.run is not None and found.estimate is None and found.no_estimate
    assert not found.ok and found.advice.kv_tier is None and not found.advice.commands


def test_what_fits_nowhere_is_not_measured(model, monkeypatch):
    monkeypatch.setattr(examine, "free_memory", lambda device: 10)
    monkeypatch.setattr(examine, "measure", lambda *args: pytest.fail("it was measured"))
    found = longspan.diagnose(model, length=1000)
    assert found.run is None and found.advice.kv_tier is None and found.no_estimate == found.advice.why


def test_the_page_says_all_of_it(found):
    text = " ".join(str(found).split())
    for words in ("kernels in C", "512 tokens (max_position_embeddings)", "tokens a second", "untouched", "fits:"):
        assert words in text
    assert "longspan generate --model 'my model' --method esa:share=group" in text
    assert "longspan read TEXT --model 'my model'" in text


def test_the_model_is_left_as_it_was(model):
    ids = prompts(1)
    with torch.no_grad():
        before = model(ids).logits
        longspan.diagnose(model, length=200)
        assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize("method", longspan.METHODS)
def test_every_method_by_name(model, method):
    found = longspan.diagnose(model, length=300, method=method)
    assert found.advice.method == method and found.report.method.name == method
    short = found.short_prompts
    # Scaled angles change every row; what others state to be the model's own has to be so.
    assert (short.holds is None) == (method in ("pi", "ntk", "yarn"))
    assert short.holds is not False and found.ok == (method != "string")  # which is for texts of the window
    assert ("changed, also inside the window" in " ".join(str(found).split())) == (short.holds is None)


@pytest.mark.parametrize(("method", "most"), [("string", 83), ("yarn:factor=2", 128)])
def test_a_text_beyond_what_the_method_is_set_for(model, method, most):
    within, beyond = (longspan.diagnose(model, length=length, method=method) for length in (most, most + 1))
    assert within.ok and within.advice.kv_tier == "device" and within.advice.commands
    assert not beyond.ok and beyond.advice.kv_tier is None and not beyond.advice.commands
    assert f"is set for {most} tokens, fewer than the {most + 1} asked for; take auto" in beyond.advice.why


def test_a_length_that_nobody_said(model):
    assert longspan.diagnose(model).length == 8 * WINDOW


def test_a_text_inside_the_window(model):
    found = longspan.diagnose(model, length=WINDOW)
    assert found.advice.method == "full" and "nothing changes" in found.advice.why


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (falcon, "computes attention in its own code"),
        (gpt2, "no rotary positions"),
        (lambda: make("mistral-sliding"), "no layer to attach to"),
    ],
)
def test_a_model_that_cannot_be_extended(make_it, words):
    found = longspan.diagnose(make_it())
    assert not found.ok and found.advice is None and found.model_facts.weights > 0
    assert words in found.model_facts.refusal or "position" in found.model_facts.refusal
    assert "cannot be extended" in str(found)


def test_a_model_whose_config_says_no_window(model):
    vars(model.config)["max_position_embeddings"] = None
    assert "pass window=" in longspan.diagnose(model).model_facts.refusal
    assert longspan.diagnose(model, window=WINDOW, length=300).ok


def test_what_the_model_was_published_with(model):
    model.config.dual_chunk_attention_config = {
        "chunk_size": 48, "local_size": 16, "original_max_position_embeddings": WINDOW
    }  # fmt: skip
    found = longspan.diagnose(model, length=300)
    assert found.report.method.chunk_size == 32 and found.model_facts.dual_chunks["chunk_size"] == 48
    assert "dual_chunk_attention_config" in str(found)
    scaled = longspan.diagnose(make("gpt_oss"), length=100)
    assert scaled.model_facts.rope_scaling["rope_type"] == "yarn" and "scaled RoPE" in str(scaled)


@pytest.mark.parametrize(
    ("free", "disk", "method", "tier", "words"),
    [
        (200_000, 10**9, "longheads:chunk_length=4,score=bounds", "disk", "kept on tier 'disk'"),
        (100_000, 10, "longheads:chunk_length=4,score=bounds", None, "fit into no tier of this machine; up to"),
        (None, 10**9, "dca", "device", "does not say how much memory is free"),
    ],
)
def test_memory_that_is_short(model, monkeypatch, free, disk, method, tier, words):
    monkeypatch.setattr(examine, "free_memory", lambda device: free)
    machine = look()
    monkeypatch.setattr(examine, "look", lambda folder: SimpleNamespace(**{**vars(machine), "disk_free": disk}))
    found = longspan.diagnose(model, length=1000)
    assert (found.advice.method, found.advice.kv_tier) == (method, tier) and words in found.advice.why
    assert found.ok == (tier is not None) == bool(found.advice.commands)
    if tier == "disk":
        generate, read = found.advice.commands
        assert "--kv-tier disk" in generate and "--kv-tier" not in read


def test_a_calibration_is_used_where_the_method_has_use_for_it(bundled):
    calibration = longspan.bundled_calibration()
    found = longspan.diagnose(bundled, length=20_000, calibration=calibration)
    assert found.advice.method == "esa" and found.report.calibration and found.needs.index > 0
    with pytest.raises(longspan.CalibrationError, match="does not use a calibration"):
        longspan.diagnose(bundled, length=20_000, calibration=calibration, method="dca")


@pytest.mark.parametrize(("length", "method", "named"), [(2048, "dca", False), (20_000, "esa", True)])
def test_the_commands_name_a_calibration_that_their_method_uses(bundled, length, method, named):
    file = FOLDER / "calibration.safetensors"
    advice = longspan.diagnose(bundled, length=length, calibration=file).advice
    assert advice.method == method and [f" --calibration {file}" in one for one in advice.commands] == [named] * 2


def test_a_calibration_that_auto_has_no_use_for_is_read_all_the_same(bundled, model, tmp_path):
    with pytest.raises(longspan.CalibrationError, match="none.safetensors"):
        longspan.diagnose(bundled, length=2048, calibration=tmp_path / "none.safetensors")
    with pytest.raises(longspan.CalibrationError, match="LlamaForCausalLM"):
        longspan.diagnose(model, length=4 * WINDOW, calibration=longspan.bundled_calibration())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"length": 0}, "length must be a number of tokens"),
        ({"length": "200k"}, "length must be an integer"),
        ({"seconds": 0}, "seconds must be more than 0"),
        ({"method": "dcaa"}, "did you mean 'dca'"),
        ({"kv_dir": "/no/such/folder"}, "is not a folder"),
    ],
)
def test_what_is_refused(model, given, words):
    with pytest.raises(ValueError, match=words):
        longspan.diagnose(model, **given)


def test_a_model_that_is_extended_already(model):
    with longspan.extended(model, "dca"), pytest.raises(longspan.LongspanError, match="already extended"):
        longspan.diagnose(model)


def test_a_command_is_broken_at_its_options():
    command = "longspan generate --model 'a b' --method dca --file TEXT"
    assert page.broken(command, 200) == f"  {command}"
    lines = page.broken(command, 40).split(" \\\n")
    assert len(lines) > 1 and " ".join(line.strip() for line in lines) == command
    assert all(len(line) <= 40 for line in lines)


def test_a_method_in_a_command_is_read_back(model):
    spec = "longheads:chunk_length=4,num_chunks=9,score=mean"
    found = longspan.diagnose(model, length=300, method=spec)
    assert parse_method(found.advice.method) == parse_method(spec)


def test_every_command_to_copy_is_one_that_the_program_takes(model):
    import shlex

    import typer

    from longspan.cli.commands import app

    found = longspan.diagnose(model, length=300, name="some model", options="--dtype bfloat16")
    commands = typer.main.get_command(app).commands
    assert len(found.advice.commands) == 2
    for command in found.advice.commands:
        program, name, *args = shlex.split(command)
        parsed = commands[name].make_context(name, args).params
        assert program == "longspan" and parsed["model"] == "some model" and parsed["dtype"] == "bfloat16"


def test_a_model_that_computes_all_logits_is_measured_too(monkeypatch):
    """Not every forward knows logits_to_keep."""
    model = make("llama")

    def forward(input_ids=None, attention_mask=None, past_key_values=None, use_cache=None, cache=None):
        given = {CACHE_ARGUMENT: past_key_values if cache is None else cache}
        return type(model).forward(model, input_ids, attention_mask=attention_mask, use_cache=use_cache, **given)

    monkeypatch.setattr(model, "forward", forward)
    assert longspan.diagnose(model, length=4 * WINDOW).ok
