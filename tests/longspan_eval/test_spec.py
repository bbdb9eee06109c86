"""Rows of a table as text."""

from __future__ import annotations

import json
import pickle

import pytest

import longspan
from longspan.errors import LongspanError
from longspan.hf.preset import identity_of
from longspan.methods import DCA, METHODS
from longspan.model.preset import Preset
from longspan_eval.spec import MethodSpec, parse_spec, parse_specs
from support.hf_models import WINDOW, make


def test_a_row_is_stock_or_a_method():
    assert parse_spec("stock") == MethodSpec(None) and parse_spec("stock").name == "stock"
    assert parse_spec("dca: chunk-size=100") == MethodSpec(DCA(chunk_size=100))
    assert parse_spec("dca:chunk_size=100").name == "dca"


@pytest.mark.parametrize("name", METHODS)
def test_parameters_are_resolved_and_json(name):
    shown = parse_spec(name).parameters(512, 4096)
    assert json.loads(json.dumps(shown)) == shown and "error" not in shown
    assert parse_spec(name).parameters(512, 4096) == shown
    assert pickle.loads(pickle.dumps(parse_spec(name))) == parse_spec(name)


def test_parameters_follow_the_length_where_the_method_does():
    assert parse_spec("yarn").parameters(512, 2048) != parse_spec("yarn").parameters(512, 4096)
    assert parse_spec("dca").parameters(512, 2048) == parse_spec("dca").parameters(512, 4096)
    assert parse_spec("stock").parameters(512, 2048) == {}


def test_parameters_that_do_not_fit_say_so():
    shown = parse_spec("dca:chunk_size=600,local_window=0,window=600").parameters(512, 1024)
    assert shown["chunk_size"] == 600 and "window" in shown["error"]


def test_a_calibration_goes_to_extend_and_into_the_parameters(model, tmp_path, monkeypatch):
    file = tmp_path / "c.safetensors"
    file.write_bytes(b"one")
    row = parse_spec(f"dca:calibration={file},chunk_size=100")
    assert row.calibration == file and row.method == DCA(chunk_size=100)
    seen = []
    monkeypatch.setattr("longspan.hf.extend", lambda model, method, **more: seen.append((method, more)))
    row.attach(model, 1024)
    assert seen == [(DCA(chunk_size=100), {"calibration": file, "kv_tier": "device"})]
    before = row.parameters(256, 1024)
    file.write_bytes(b"two")
    assert len(before["calibration_sha256"]) == 64 and row.parameters(256, 1024) != before


def test_attach_replaces_what_was_attached(model):
    parse_spec("dca").attach(model, 1024)
    assert model.config._attn_implementation == "longspan"
    parse_spec("full").attach(model, 1024)
    parse_spec("stock").attach(model, 1024)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["stock:a=1"], "stock model has no parameters"),
        (["magic"], "choose one of full, .*, stock"),
        (["dca", "dca"], "'dca' is listed twice"),
        (["dca:chunk_size=1", "dca: chunk-size=1"], "twice"),
        (["dca:calibration=/no/such/file"], "no calibration /no/such/file; make one"),
        ([], "at least one row"),
    ],
)
def test_what_is_wrong_is_named(specs, words):
    with pytest.raises(LongspanError, match=words):
        parse_specs(specs)


def test_rows_are_the_same_however_they_are_written(tmp_path):
    (tmp_path / "c.safetensors").write_bytes(b"one")
    for one, other, label in (
        ("dca", "dca:length_scale=none", "dca"),
        ("longheads:score=bounds,num_chunks=8", "longheads: num-chunks=8, score=bounds",
         "longheads:num_chunks=8,score=bounds"),
        ("esa:calibration=bundled,top_k=9", "esa:top_k=9,calibration=bundled", "esa:top_k=9,calibration=bundled"),
        (f"esa:calibration={tmp_path}/c.safetensors", f"esa:share=layer,calibration={tmp_path}/c.safetensors",
         f"esa:calibration={tmp_path}/c.safetensors"),
    ):  # fmt: skip
        assert parse_spec(one) == parse_spec(other) == parse_spec(label)
        assert parse_spec(one).label == parse_spec(other).label == label
        with pytest.raises(LongspanError, match="listed twice"):
            parse_specs([one, other])


def test_a_preset(tmp_path):
    llama, file = make("llama"), tmp_path / "own.json"
    method = "longheads:chunk_length=4,num_chunks=8,score=bounds"
    preset = Preset(method, WINDOW // 2, 4 * WINDOW, identity_of(llama), {"found": 9, "asked": 10})
    file.write_text(preset.to_json(), encoding="utf-8")
    spec = parse_spec(str(file))
    assert spec == parse_spec(f"{method},declared={WINDOW // 2}") == parse_spec(spec.label)
    assert spec.parameters(WINDOW, 4 * WINDOW)["declared"] == WINDOW // 2
    spec.attach(llama, 4 * WINDOW, WINDOW)
    assert llama.config._attn_implementation != "sdpa"
    longspan.restore(llama)
    with pytest.raises(LongspanError, match="is another model"):
        spec.attach(make("qwen2"), 4 * WINDOW)
