"""Presets: written and read again, taken wherever a method is, and refused on another model."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import longspan
from longspan.errors import LongspanError
from longspan.hf.preset import identity_of, shipped_for
from longspan.loading.known import KNOWN
from longspan.methods import ESA, LongHeads
from longspan.model import preset as module
from longspan.model.preset import SHIPPED, Identity, Preset
from support.hf_models import WINDOW, make

SPEC = "longheads:chunk_length=4,num_chunks=8,score=bounds"


@pytest.fixture
def llama():
    return make("llama")


@pytest.fixture
def preset(llama):
    return Preset(SPEC, WINDOW // 2, 4 * WINDOW, identity_of(llama), {"found": 9, "asked": 10})


@pytest.fixture
def file(preset, tmp_path):
    path = tmp_path / "own.json"
    path.write_text(preset.to_json(), encoding="utf-8")
    return path


def test_a_preset_is_read_as_it_was_written(preset, file):
    assert Preset.read(file) == preset and Preset.read(file).source == str(file)


def test_extend_runs_its_method_at_its_window(llama, file):
    report = longspan.extend(llama, str(file))
    assert report.window == WINDOW // 2
    assert report.method == LongHeads(chunk_length=4, num_chunks=8, score="bounds").resolve(WINDOW // 2)
    longspan.restore(llama)


@pytest.mark.parametrize("options", [{"window": WINDOW}, {"angles": longspan.PI()}])
def test_what_it_states_is_not_stated_again(llama, file, options):
    with pytest.raises(LongspanError, match=f"leave out {next(iter(options))}; or pass the method by hand"):
        longspan.extend(llama, str(file), **options)
    assert longspan.extend(llama, str(file), window=WINDOW // 2).window == WINDOW // 2


def test_a_length_that_it_says_nothing_of_is_a_note(llama, file):
    def notes(length):
        return [note for note in longspan.inspect(llama, str(file), length=length).warnings if "was found at" in note]

    assert not notes(8 * WINDOW) and len(notes(8 * WINDOW + 1)) == 1


@pytest.mark.parametrize(
    ("family", "difference"),
    [("qwen2", "its model_type is qwen2, not llama"), ("llama-mha", "its num_key_value_heads is 4, not 2")],
)
def test_a_preset_of_another_model_is_refused_with_the_way_out(file, family, difference):
    with pytest.raises(LongspanError) as refused:
        longspan.extend(make(family), str(file))
    assert difference in str(refused.value) and f'extend(model, "{SPEC}", window=32)' in str(refused.value)


def test_the_doctor_measures_and_recommends_it(llama, file):
    found = longspan.diagnose(llama, length=4 * WINDOW, method=str(file))
    assert found.advice.method == SPEC
    assert all(f"--method {SPEC} --window {WINDOW // 2}" in command for command in found.advice.commands)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda body: body.pop("method"), "it has no 'method'"),
        (lambda body: body.update(format="else"), "its format is 'else'"),
        (lambda body: body.update(method="dac"), "unknown method 'dac'"),
        (lambda body: body.update(window=0), "window must be"),
        (lambda body: body.update(length="long"), "length must be"),
        (lambda body: body["model"].pop("shape"), "it has no 'shape'"),
        (lambda body: body["model"].update(shape=3), "is no preset"),
        (lambda body: body.update(evidence=7), "is no preset"),
    ],
)
def test_what_is_no_preset_is_refused(file, spoil, words):
    body = json.loads(file.read_text())
    spoil(body)
    file.write_text(json.dumps(body))
    with pytest.raises(LongspanError, match=words):
        Preset.read(file)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 10**5, None])
def test_nor_is_another_file(tmp_path, content):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LongspanError, match=r"x\.json"):
        Preset.read(path)


def test_auto_takes_the_shipped_preset_of_a_model_and_says_so(llama, preset, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHIPPED", tmp_path)
    named = replace(preset, model=replace(preset.model, name=identity_of(llama).name))
    (tmp_path / "short.json").write_text(named.to_json())
    report = longspan.inspect(llama, "auto", length=8 * WINDOW)
    assert report.window == WINDOW // 2 and report.method.name == "longheads" and "preset" in report.reason
    assert longspan.inspect(llama, "auto", length=8 * WINDOW + 1).method.name == "dca"
    assert longspan.inspect(llama, "auto", length=WINDOW).method.name == "full"
    assert longspan.inspect(llama, "auto", length=8 * WINDOW, window=WINDOW).method.name == "dca"
    assert longspan.inspect(llama, "auto").method == ESA(share="group").resolve(WINDOW)
    assert longspan.inspect(make("qwen2"), "auto", length=8 * WINDOW).method.name == "dca"
    assert shipped_for(llama, 8 * WINDOW) == named
    llama.config._name_or_path = "somebody/else"
    assert shipped_for(llama, 8 * WINDOW) is None


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.name)
def test_every_shipped_preset_is_of_a_model_that_is_fetched(path):
    preset, short = Preset.read(path), path.name.partition(".")[0]
    assert preset.model.name == KNOWN[short].title and preset.evidence
    assert preset.model.window and preset.length > (preset.window or preset.model.window)
    preset.method.reaching(preset.length).resolve(preset.window or preset.model.window)
    assert preset.is_of(Identity(short, preset.model.window, preset.model.shape))
    assert preset.is_of(Identity(KNOWN[short].file, preset.model.window, preset.model.shape))
    assert preset.is_of(Identity(KNOWN[short].hub, preset.model.window, preset.model.shape))
