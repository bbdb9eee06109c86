"""GGUF files: the model that comes of one is the one that the file states, to the bit."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import longspan
from longspan.bundled import FOLDER, heldout_text, load_bundled
from longspan.documents import fingerprint
from longspan.errors import DocumentError
from longspan.loading.models import load_model
from longspan.weights.modules import PackedLinear
from support.gguf_files import ARCHITECTURES, TEMPLATE, Kind, dequantised, random_model, write

KINDS = (Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1, Kind.Q5_0)
LINES = ["Hello 12345", "x  = 3.14", "  7", "naïve café", "a\n\n\tb 10", "日本 2"]


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits.double()


@pytest.mark.parametrize("weights", ["auto", "as-is"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_weights_are_those_of_the_file(tmp_path, architecture, kind, weights):
    """Packed or dequantised."""
    stock = random_model(architecture)
    file = write(tmp_path / "model.gguf", stock, architecture, kind=kind)
    plain = kind in (Kind.F32, Kind.F16, Kind.BF16)
    dtype = "auto" if plain else "float32"  # which alone dequantises
    model, _ = longspan.load(file, device="cpu", quiet=True, dtype=dtype, weights=weights)
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert bool(packed) == (weights == "as-is" and not plain)
    wanted = {Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}.get(kind, torch.float32)
    assert model.dtype == wanted and model.config._attn_implementation == "sdpa" and not model.training
    assert model.config.max_position_embeddings == 128 and not hasattr(model.config, "quantization_config")

    ids = torch.randint(2, 2000, (1, 100), generator=torch.Generator().manual_seed(1))
    truth = logits(dequantised(stock, architecture, kind), ids)
    # fp16 and bf16 files have vectors in fp32, which the model has in the type of its matrices.
    budget = {torch.float16: 2e-2, torch.bfloat16: 2e-1}.get(wanted, 0.0)
    assert (logits(model.double(), ids) - truth).abs().max() <= budget


@pytest.mark.parametrize("weights", ["fp32", "as-is"])
@pytest.mark.parametrize("method", ["dca", "longheads"])
def test_logits_within_the_budget(tmp_path, method, weights):
    """In fp32 and beyond the window, against the dequantised weights in fp64."""
    stock = random_model("llama")
    file = write(tmp_path / "model.gguf", stock, "llama", kind=Kind.Q4_1)
    model, _ = longspan.load(file, device="cpu", quiet=True, weights=weights, dtype="float32")
    exact = dequantised(stock, "llama", Kind.Q4_1)
    plain = random_model("llama").float()
    plain.load_state_dict(exact.state_dict())
    ids = torch.randint(2, 2000, (1, 300), generator=torch.Generator().manual_seed(1))
    for each in (model, plain, exact):
        longspan.extend(each, method, impl="torch")
    truth = logits(exact, ids)
    assert (logits(model, ids) - truth).abs().max() <= 2 * (logits(plain, ids) - truth).abs().max()


def test_the_tokenizer_and_its_template(tmp_path):
    file = write(tmp_path / "model.gguf", random_model("llama"), "llama", pre="smollm")
    _, tokenizer = longspan.load(file, device="cpu", quiet=True)
    own = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    text = heldout_text()[:5000]
    assert tokenizer(text)["input_ids"] == own(text)["input_ids"]
    assert tokenizer.chat_template == TEMPLATE and (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert len(tokenizer) == len(own) and "<|endoftext|>" not in tokenizer.get_vocab()


def test_digits_are_split_as_the_file_says(tmp_path):
    """SmolLM cuts a text at each digit before it merges, so that two spaces before one stay together."""
    model = random_model("llama")
    tokens = {}
    for rule in ("gpt-2", "smollm"):
        _, tokenizer = longspan.load(
            write(tmp_path / f"{rule}.gguf", model, "llama", pre=rule), device="cpu", quiet=True
        )
        tokens[rule] = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")
        for line in LINES:
            assert tokenizer.decode(tokenizer(line)["input_ids"], skip_special_tokens=True) == line
    assert [piece for piece, _ in tokens["gpt-2"]] == ["a", "Ġ", "Ġ12"]
    assert [piece for piece, _ in tokens["smollm"]] == ["a", "ĠĠ", "1", "2"]


@pytest.mark.parametrize("stated", [None, "linear", "yarn", "llama3"])
def test_scaled_frequencies(tmp_path, stated):
    """transformers' reader leaves them out, and the model would compute something else."""
    rope = {"rope_type": stated or "default", "rope_theta": 10_000.0}
    metadata, more = {}, {}
    if stated in ("linear", "yarn"):
        rope["factor"] = 4.0
        metadata = {"llama.rope.scaling.type": stated, "llama.rope.scaling.factor": 4.0}
    if stated == "yarn":
        rope["original_max_position_embeddings"] = 32
        metadata["llama.rope.scaling.original_context_length"] = 32
    if stated == "llama3":
        rope |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= {"original_max_position_embeddings": 8192, "rope_theta": 500_000.0}
    stock = random_model("llama", hidden_size=256, rope_parameters=rope)
    if stated == "llama3":
        plain = random_model(
            "llama", hidden_size=256, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}
        )
        more["rope_freqs.weight"] = (plain.model.rotary_emb.inv_freq / stock.model.rotary_emb.inv_freq).numpy()
        assert more["rope_freqs.weight"].max() > 7
    file = write(tmp_path / "model.gguf", stock, "llama", stated=metadata, more=more)
    model, _ = longspan.load(file, device="cpu", quiet=True)
    torch.testing.assert_close(
        model.model.rotary_emb.inv_freq, stock.model.rotary_emb.inv_freq.float(), rtol=1e-5, atol=0
    )
    assert model.model.rotary_emb.attention_scaling == stock.model.rotary_emb.attention_scaling


@pytest.mark.parametrize(("weights", "copy"), [("fp32", "float32/model"), ("as-is", "weights-as-is/packed-000")])
def test_the_second_start_converts_nothing(tmp_path, monkeypatch, cache, weights, copy):
    file = write(tmp_path / "model.gguf", random_model("qwen2"), "qwen2", kind=Kind.Q8_0)
    first, _ = longspan.load(file, device="cpu", quiet=True, weights=weights)
    wanted = [weight.clone() for weight in first.parameters()]
    with monkeypatch.context() as patched:
        for converter in ("_convert", "_pack", "_convert_tokenizer"):
            patched.setattr(f"longspan.loading.gguf.{converter}", None)
        second, _ = longspan.load(file, device="cpu", quiet=True, weights=weights)
    assert all(torch.equal(a, b) for a, b in zip(wanted, second.parameters(), strict=True))
    (kept,) = cache.glob(f"copies/*/{copy}.safetensors")

    damaged = bytearray(kept.read_bytes())
    damaged[-1] ^= 1
    kept.unlink()  # what is mapped keeps its bytes
    kept.write_bytes(damaged)
    third, _ = longspan.load(file, device="cpu", quiet=True, weights=weights)
    assert all(torch.equal(a, b) for a, b in zip(wanted, third.parameters(), strict=True))


def test_another_file_of_this_name_is_converted(tmp_path, cache):
    file = write(tmp_path / "model.gguf", random_model("llama"), "llama", kind=Kind.Q8_0)
    longspan.load(file, device="cpu", quiet=True)
    write(file, random_model("llama", num_hidden_layers=1), "llama", kind=Kind.Q8_0)
    model, _ = longspan.load(file, device="cpu", quiet=True)
    assert model.config.num_hidden_layers == 1 and len(list(cache.glob("copies/*/weights-as-is"))) == 1
    half, _ = longspan.load(file, dtype="bfloat16", device="cpu", quiet=True)
    assert half.dtype == torch.bfloat16


def test_a_copy_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    file = write(tmp_path / "model.gguf", random_model("llama"), "llama")
    with pytest.raises(longspan.LongspanError, match="Not a directory"):
        longspan.load(file, device="cpu", quiet=True)


def test_commands_take_it(run, tmp_path):
    file = write(tmp_path / "model.gguf", random_model("llama"), "llama", kind=Kind.Q8_0)
    (tmp_path / "book.txt").write_text(heldout_text()[:1000])
    out = tmp_path / "book.longspan"
    ran = run("read", tmp_path / "book.txt", "--model", file, "--out", out, "--method", "dca", "--device", "cpu", "-q")
    assert ran.code == 0, ran.err
    ran = run("ask", out, "Who?", "--max-new-tokens", 3, "--json")
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["tokens"]) == 3
    ran = run("inspect", file, "--method", "dca")
    assert ran.code == 0 and "128 tokens" in ran.out


def test_a_document_says_how_its_model_was_loaded(run, tmp_path):
    (tmp_path / "book.txt").write_text(heldout_text()[:3000])
    out = tmp_path / "book.longspan"
    ran = run("read", tmp_path / "book.txt", "--model", "bundled", "--weights", "int8", "--out", out, "-q")
    assert ran.code == 0, ran.err
    assert run("ask", out, "Who?", "--max-new-tokens", 3).code == 0
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    other = load_model("bundled", dtype="bfloat16", device="cpu")
    with pytest.raises(DocumentError, match="weights"):
        longspan.Document.open(out, other, tokenizer)


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q5_0], ids=lambda kind: kind.name)
def test_any_file_is_rounded(tmp_path, kind, form):
    """Embeddings and head to 8 bits."""
    file = write(tmp_path / "model.gguf", random_model("llama"), "llama", kind=kind)
    model, _ = longspan.load(file, device="cpu", quiet=True, weights=form, dtype="float32")
    bits = {name: x.matrix.bits for name, x in model.named_modules() if isinstance(x, PackedLinear)}
    assert len(bits) == 15 and bits.pop("lm_head") == 8 and set(bits.values()) == {4 if form == "int4" else 8}


def test_weights_are_hashed_once(tmp_path, monkeypatch):
    file = write(tmp_path / "model.gguf", random_model("llama"), "llama", kind=Kind.Q8_0)
    model, _ = longspan.load(file, device="cpu", quiet=True)
    assert model.config._name_or_path == str(file)
    found = fingerprint.weights_of(model)
    monkeypatch.setattr("longspan.documents.fingerprint.weights_hash", None)
    again, _ = longspan.load(file, device="cpu", quiet=True)
    assert fingerprint.weights_of(again) == found


@pytest.mark.parametrize("name", ["bundled", FOLDER])
def test_load_takes_any_name(name):
    model, tokenizer = longspan.load(name, device="cpu", quiet=True)
    stock, own = load_bundled()
    assert torch.equal(model.lm_head.weight, stock.lm_head.weight) and tokenizer("a b") == own("a b")
