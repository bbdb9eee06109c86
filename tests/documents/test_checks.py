"""A document that is not what was written, or of another model, is refused in one line; nothing is answered from it."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path

import pytest
import torch

import longspan
from longspan.bundled import load_bundled
from longspan.cli import main
from longspan.documents import fingerprint, verify
from longspan.documents.manifest import FORMAT
from longspan.errors import LongspanError
from longspan.hf.attach import attachment_of
from longspan.kernels import cpu
from support.spoiled_documents import edited, spoilers

SHORT, LONG = 60, 200


def refused(saved, place, call, seed, fresh, tokenizer):
    """What the library says to a copy that was spoiled; None where it opens it."""
    shutil.copytree(saved, place)
    call(place, random.Random(seed))
    try:
        longspan.Document.open(place, fresh(), tokenizer, verify=True)
    except LongspanError as error:
        return str(error)
    return None


@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_whatever_is_spoiled_is_refused(saved, fresh, tokenizer, tmp_path, count):
    model = fresh()
    for seed, (name, call) in enumerate(spoilers(count)):
        said = refused(saved, tmp_path / str(seed), call, seed, lambda: model, tokenizer)
        assert said is not None, f"{name} (seed {seed}) was opened"
        assert "Traceback" not in said and len(said) < 1500, (name, said)
        assert all(len(line) < 700 for line in said.splitlines()), (name, said)
        longspan.restore(model)


def test_on_the_command_line_it_is_one_line(saved, tmp_path, capsys):
    for seed, (name, call) in enumerate(spoilers(22)):
        place = tmp_path / str(seed)
        shutil.copytree(saved, place)
        call(place, random.Random(seed))
        with pytest.raises(SystemExit) as stopped:
            main(["ask", str(place), "Who?", "--verify", "--max-new-tokens", "2"])
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if not line.startswith(("Loading", "[transformers]"))]
        assert stopped.value.code == 1 and out == "", name
        assert len(lines) == 1 and lines[0].startswith("longspan: error: "), (name, err)


def test_without_verify_a_bit_in_the_middle_is_left_to_the_checksums(saved, fresh, tokenizer, tmp_path):
    """Opening reads the ends of each stream; all of it is read where it is asked for."""
    shutil.copytree(saved, tmp_path / "a")
    data = tmp_path / "a" / "data-0000.bin"
    with data.open("r+b") as file:
        file.seek(40_000)
        file.write(b"\x55" * 8)
    with pytest.raises(LongspanError, match="data-0000.bin is not what was written"):
        verify(tmp_path / "a")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc")
def test_what_is_refused_leaves_no_file_open(saved, fresh, tokenizer, tmp_path):
    """Though the errors are kept, whose frames had them; of readings that were not finished too."""
    model, errors, before = fresh(), [], len(os.listdir("/proc/self/fd"))
    for seed, (_, call) in enumerate(spoilers(LONG)):
        place = tmp_path / str(seed)
        shutil.copytree(saved, place)
        call(place, random.Random(seed))
        with pytest.raises(LongspanError) as raised:
            longspan.Document.open(place, model, tokenizer, verify=seed % 2 == 0)
            raise LongspanError("opened, since nobody asked to verify")
        errors.append(raised.value)
        longspan.restore(model)
        shutil.rmtree(place)
    assert len(errors) == LONG and len(os.listdir("/proc/self/fd")) <= before


def test_verify_of_a_whole_one(saved):
    assert verify(saved).facts.method == "longheads"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 1}, "the weights' hash is .* here: load the weights"),
        ({"rms_norm_eps": 1e-3}, "the config's rms_norm_eps is 1e-06 in the document and 0.001 here"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}},
            r"config's rope_parameters.rope_theta is 10000.0 in the document and 50000.0 here: load the model",
        ),
        ({"dtype": torch.bfloat16}, "the dtype is float32 in the document and bfloat16 here: load the model in"),
    ],
)
def test_another_model(saved, tokenizer, reader, other, said):
    model = reader(**other)
    with pytest.raises(LongspanError, match=said):
        longspan.Document.open(saved, model, tokenizer)
    assert model.config._attn_implementation != "longspan", "nothing stays changed"


def test_a_model_in_training_mode(saved, fresh, tokenizer):
    """Nothing is wrong with the document, and the text need not be read again."""
    with pytest.raises(LongspanError, match=r"^the model is in training mode, .*call model.eval\(\)$"):
        longspan.Document.open(saved, fresh().train(), tokenizer)


def test_a_weight_that_was_changed_in_memory(saved, fresh, tokenizer):
    """The files are those that read it, and the model is not."""
    longspan.Document.open(saved, fresh(), tokenizer)  # its hash is remembered by its files
    model = fresh()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1.01)
    with pytest.raises(LongspanError, match="the weights' hash"):
        longspan.Document.open(saved, model, tokenizer)


def test_one_row_of_a_weight_that_was_changed_in_memory(saved, fresh, tokenizer):
    """No sample has to have a number of it; and another such change is not taken for the first."""
    longspan.Document.open(saved, fresh(), tokenizer)
    hashes = [fingerprint.weights_of(fresh())]
    for row in (5, 6):
        model = fresh()
        with torch.no_grad():
            model.lm_head.weight[row] += 3
        hashes.append(fingerprint.weights_of(model))
        with pytest.raises(LongspanError, match="the weights' hash"):
            longspan.Document.open(saved, model, tokenizer)
    assert len(set(hashes)) == 3


ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: {}\nCPU revision\t: 1\n"


def test_processors_without_a_name_are_told_apart(fresh, tmp_path, monkeypatch):
    model, found = fresh(), []
    longspan.extend(model, "dca")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    read, known, own = Path.read_text, Path("/proc/cpuinfo"), tmp_path / "cpuinfo"
    monkeypatch.setattr(
        Path, "read_text", lambda path, *given, **more: read(own if path == known else path, *given, **more)
    )
    for parts in (["0xd0c"], ["0xd4f"], ["0xd0c", "0xd4f"], ["0xd0c"]):
        (tmp_path / "cpuinfo").write_text("\n".join(ARM.format(part) for part in parts))
        fingerprint._processor.cache_clear()
        found.append(fingerprint.machine_of(model, attachment_of(model).report))
    fingerprint._processor.cache_clear()
    assert len(set(found)) == 3 and found[0] == found[3]


def test_another_tokenizer(saved, fresh, folder):
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast.from_pretrained(folder)
    other.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(LongspanError, match="the tokenizer's hash"):
        longspan.Document.open(saved, fresh(), other)
    same = PreTrainedTokenizerFast.from_pretrained(folder)
    same("x" * 50, truncation=True, max_length=3, padding="max_length")  # leaves a trace in its rules
    longspan.Document.open(saved, fresh(), same)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("dca", "the method is longheads in the document and dca here: extend the model"),
        (longspan.LongHeads(score="mean"), "the method's score is bounds in the document and mean here"),
        (
            longspan.LongHeads(score="bounds", angles=longspan.PI(scale=2.0)),
            "the angles' name is Angles .* and PI here",
        ),
    ],
)
def test_another_method(saved, fresh, tokenizer, method, said):
    model = fresh()
    longspan.extend(model, method)
    with pytest.raises(LongspanError, match=said):
        longspan.Document.open(saved, model, tokenizer)
    assert model.config._attn_implementation == "longspan"


def test_another_method_is_one_line(saved, fresh, tokenizer):
    for method in ("dca", longspan.LongHeads(score="mean", chunk_length=4)):
        model = fresh()
        longspan.extend(model, method)
        with pytest.raises(LongspanError) as raised:
            longspan.Document.open(saved, model, tokenizer)
        assert len(str(raised.value).splitlines()) == 1
    assert "score is bounds in the document and mean here" in str(raised.value)
    assert "chunk_length is 8 in the document and 4 here" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda f: f.update(prefill_chunk=0),
            "its manifest.facts.prefill_chunk is 0, which is invalid; the manifest is damaged, read",
        ),
        (lambda f: f.update(window=0), "its manifest.facts.window is 0, which is invalid; the manifest is damaged"),
        (
            lambda f: f.update(window=2**40),
            "its manifest.facts.window is 1099511627776, which is invalid; the manifest",
        ),
        (
            lambda f: f["sources"][0].update(start=4_001),
            r"its manifest.facts.sources\[0\] has the characters 4001 to 4000 after 0,",
        ),
        (
            lambda f: f["sources"].reverse(),
            r"its manifest.facts.sources\[1\] has the characters 0 to 4000 after 4\d+, which is invalid",
        ),
        (
            lambda f: f["sources"][0].update(stop=4_003),
            r"its manifest.facts.sources\[1\] has the characters 4002 to .* after 4003,",
        ),
        (
            lambda f: f["sources"][1].update(stop=9_999),
            "its sources have 9,999 characters, and its text has 4,.* bytes;",
        ),
        (
            lambda f: f["parameters"].update(chunk_length=0),
            "its method longheads is not possible .*; the manifest is damaged, read",
        ),
        (lambda f: f.update(method="x"), "its method is 'x' .*; use the version of longspan that wrote it"),
    ],
)
def test_a_forged_value_is_refused_with_the_folder_and_a_way_out(saved, fresh, tokenizer, tmp_path, change, said):
    place = tmp_path / "a"
    shutil.copytree(saved, place)
    edited(place, lambda held: change(held["facts"]), random.Random(0), forged=1)
    with pytest.raises(LongspanError, match=f"^{re.escape(str(place))}: {said}"):
        longspan.Document.open(place, fresh(), tokenizer)


def test_a_manifest_without_a_canary_is_refused(saved, fresh, tokenizer, tmp_path):
    """As it is until a reading is finished."""
    place = tmp_path / "a"
    shutil.copytree(saved, place)
    edited(place, lambda held: held.update(canary=None), random.Random(0), forged=1)
    for opened in (verify, lambda path: longspan.Document.open(path, fresh(), tokenizer)):
        with pytest.raises(LongspanError, match="its manifest has no canary; .*read the text again"):
            opened(place)


@pytest.mark.parametrize("content", ["{", "[]", f'{{"facts": {{"format": {FORMAT}}}}}', "[" * 100_000])
def test_a_damaged_manifest_has_a_way_out(saved, tmp_path, content):
    shutil.copytree(saved, tmp_path / "a")
    (tmp_path / "a" / "manifest.json").write_text(content)
    with pytest.raises(LongspanError, match="read the text again"):
        verify(tmp_path / "a")


def test_the_bundled_model_is_known_by_its_name(tokenizer, tmp_path):
    longspan.read(load_bundled()[0], tokenizer, "Some words. " * 30, out=tmp_path / "a")
    assert verify(tmp_path / "a").facts.source == "bundled"


def test_each_difference_has_a_line(saved, reader, tokenizer):
    with pytest.raises(LongspanError) as raised:
        longspan.Document.open(saved, reader(rms_norm_eps=1e-3, hidden_act="relu"), tokenizer)
    lines = str(raised.value).splitlines()
    assert len(lines) == 2 and all(str(saved) in line for line in lines)


def test_the_canary_sees_what_hashes_do_not(saved, fresh, tokenizer, monkeypatch):
    """A kernel that computes something else: on the same machine any difference, elsewhere a large one."""
    from longspan.documents import canary

    forward = canary.forward
    monkeypatch.setattr(canary, "forward", lambda *args: forward(*args) + 1e-6)
    with pytest.raises(LongspanError, match="logits differ from those stored with the document.*same machine"):
        longspan.Document.open(saved, fresh(), tokenizer)
    monkeypatch.setattr(fingerprint, "machine_of", lambda *args: "another one")
    longspan.Document.open(saved, fresh(), tokenizer)
    monkeypatch.setattr(canary, "forward", lambda *args: forward(*args) * 1.5)
    with pytest.raises(LongspanError, match="other kernels may differ by"):
        longspan.Document.open(saved, fresh(), tokenizer)


@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")
@pytest.mark.parametrize("method", ["dca", "longheads"])
def test_a_document_of_compiled_kernels_alone_is_kept_with_what_others_differ_by(reader, tokenizer, tmp_path, method):
    model = reader()
    for impl in ("compiled", "auto"):
        longspan.extend(model, method, impl=impl)
        longspan.read(model, tokenizer, "Some words. " * 60).save(tmp_path / impl)
        longspan.Document.open(tmp_path / impl, model, tokenizer)
    compiled, auto = (verify(tmp_path / impl).canary for impl in ("compiled", "auto"))
    assert compiled.budget == auto.budget


class TestOtherWeights:
    """Another quantisation of the model may answer if it is asked to, and says how far off what was read is."""

    @pytest.fixture
    def other(self, fresh):
        def of(scale):
            model = fresh()
            with torch.no_grad():
                for weight in model.model.layers.parameters():
                    weight += (
                        scale * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
                    )
            return model

        return of

    def test_they_answer_with_the_measured_difference(self, saved, other, tokenizer, tmp_path):
        errors = []
        for scale in (0.001, 0.01):
            model = other(scale)
            with pytest.raises(longspan.DocumentError, match="the weights' hash"):
                longspan.Document.open(saved, model, tokenizer)
            with pytest.warns(UserWarning, match=r"differ .* by up to [\d.]+%") as said:
                document = longspan.Document.open(saved, model, tokenizer, other_weights=True)
            errors.append(float(re.search(r"up to ([\d.]+)%", str(said[0].message))[1]))
            assert document.ask("Who?", 3).text
            document.append("More of it.")
            with pytest.raises(longspan.DocumentError, match="read it again"):
                document.save(tmp_path / "copy")
            with pytest.raises(longspan.DocumentError, match="read it again"):
                document.fork().save(tmp_path / "copy")
        assert 0 < errors[0] < errors[1] < 50

    def test_another_model_of_the_same_shape_is_refused(self, saved, other, tokenizer):
        with pytest.raises(longspan.DocumentError, match="another model's"):
            longspan.Document.open(saved, other(3.0), tokenizer, other_weights=True)

    def test_the_same_weights_are_checked_as_ever(self, saved, fresh, tokenizer, recwarn):
        longspan.Document.open(saved, fresh(), tokenizer, other_weights=True)
        assert not [one for one in recwarn if "other weights" in str(one.message)]

    def test_a_refusal_restores_the_model(self, saved, other, tokenizer):
        model = other(3.0)
        with pytest.raises(longspan.DocumentError):
            longspan.Document.open(saved, model, tokenizer, other_weights=True)
        assert attachment_of(model) is None
