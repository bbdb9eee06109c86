"""A document in int8 answers as a model does that attends to the dequantised keys, under every method."""

from __future__ import annotations

import json
import os

import pytest
import torch

import longspan
from longspan.documents import fingerprint, streams
from longspan.documents.contents import Contents, attached
from longspan.documents.conversation import Conversation
from longspan.documents.manifest import _sum
from longspan.documents.reading import Unnamed, forward, read_on
from longspan.errors import DocumentError, LongspanError
from longspan.kernels import cpu
from longspan.methods import METHODS
from support.cases import WINDOW, assert_same, build
from support.hf_models import _COMMON, make, prompts
from support.hf_models import build as build_model
from support.variants import VARIANTS

ASK, STEPS, PREFILL_CHUNK = "Who is the narrator?", 4, 64
CASES = [(name, options) for name in METHODS for options in [{}, *VARIANTS.get(name, [])]]


@torch.inference_mode()
def said(model, cache, question):
    """The logits of a question, and of a few given tokens after it, one by one."""
    found = [forward(model, question, cache, len(question))]
    found += [forward(model, question[n : n + 1], cache) for n in range(STEPS)]
    return torch.cat(found)


def read(model, ids, kv="int8", contents=None):
    contents = Contents(kv=kv) if contents is None else contents
    longer = contents.with_text(ids, torch.zeros(len(ids), 2, dtype=torch.int64), "", [])
    return read_on(model, attached(model), longer, PREFILL_CHUNK, Unnamed())


@pytest.fixture
def dequantised(monkeypatch):
    """Lets caches that are made from now on hold what is dequantised, as exact memory."""
    real = streams.read_back

    def use():
        monkeypatch.setattr(streams, "read_back", lambda *args, **kwargs: real(*args, **{**kwargs, "keep": False}))

    return use


def same(model, question, dequantised, tokens=221):
    """Read in two parts, under which blocks of keys begin anew."""
    ids = prompts(1, tokens)[0]
    contents = read(model, ids[-70:], contents=read(model, ids[:-70]))
    cache = contents.cache(model, attached(model))
    coded = any(store.coded for store in cache.stores)
    found = said(model, cache, question)
    assert torch.equal(said(model, contents.cache(model, attached(model)), question), found)
    dequantised()
    plain = contents.cache(model, attached(model))
    assert not any(store.brought for store in plain.stores)
    expected = said(model, plain, question)
    if model.dtype == torch.float32:
        assert_same(found, expected)
    else:  # through several layers, so what other kernels differ by is the measure, as it is of the canary
        with cpu.disabled():
            other = said(model, contents.cache(model, attached(model)), question)
        rounding = 32 * torch.finfo(model.dtype).eps * expected.abs().max()
        assert (found - expected).abs().max() <= 4 * (other - expected).abs().max() + rounding
    return coded


SOME = [
    pytest.param(name, options, id=f"{name}-{n}", marks=() if not options or n % 2 else pytest.mark.long)
    for n, (name, options) in enumerate(CASES)
]


@pytest.mark.parametrize(("name", "options"), SOME)
def test_every_method(model, question, dequantised, name, options):
    method = build(name, options).method
    with longspan.extended(model, method, window=WINDOW):
        assert same(model, question, dequantised) == (method.selects and not method.angles.dynamic)


@pytest.mark.parametrize("tokens", [128 + 70, 128 + 71, 100 + 70])
def test_blocks_that_end_anywhere(model, question, dequantised, tokens):
    with longspan.extended(model, "longheads:chunk_length=4,score=bounds", window=WINDOW):
        same(model, question, dequantised, tokens)


@pytest.mark.parametrize("name", ["dca", "longheads:score=bounds", "infllm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_dtypes(question, dequantised, name, dtype):
    model = make("llama", dtype)
    with longspan.extended(model, name):
        same(model, question, dequantised)


@pytest.mark.parametrize("tier", ["disk", "auto"])
@pytest.mark.parametrize("name", ["dca", "longheads:score=bounds"])
def test_tiers(model, question, dequantised, name, tier):
    with longspan.extended(model, name, kv_tier=tier):
        same(model, question, dequantised)


@pytest.mark.parametrize("impl", ["torch", "reference"])
@pytest.mark.parametrize("name", ["longheads", "esa", "infllm"])
def test_other_kernels(model, question, dequantised, name, impl):
    with longspan.extended(model, name, impl=impl):
        same(model, question, dequantised)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_layers_of_every_kind(question, dequantised, family):
    model = make(family)
    with longspan.extended(model, "longheads:score=bounds"):
        same(model, question, dequantised)


def test_keys_wider_than_values(question, dequantised):
    own = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "v_head_dim": 16}
    own |= {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4}
    model = build_model("minicpm3", {**_COMMON, **own})
    for name in ("longheads:score=bounds", "esa"):
        with longspan.extended(model, name):
            same(model, question, dequantised)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "esa"])
def test_it_is_near_the_exact_document(model, question, name):
    """Not under ESA, whose choice of single tokens in a random model is another one."""
    with longspan.extended(model, name):
        found, exact = (
            said(model, read(model, prompts(1, 221)[0], kv).cache(model, attached(model)), question)
            for kv in ("int8", "exact")
        )
    assert (found - exact).abs().max() < 0.1 * exact.abs().max()
    assert not torch.equal(found, exact)


def test_the_index_is_exact(model):
    """Of the first prefill chunk, which attends to nothing in int8."""
    ids = prompts(1, PREFILL_CHUNK)[0]
    with longspan.extended(model, "longheads:chunk_length=4,score=bounds", window=WINDOW):
        kept = [read(model, ids, kv).cache(model, attached(model)) for kv in ("int8", "exact")]
    for own, exact in zip(*(cache.stores for cache in kept), strict=True):
        assert all(map(torch.equal, own.index.state(), exact.index.state()))


@pytest.fixture(params=["longheads:chunk_length=16,score=bounds", "dca"])
def document(request, fresh, tokenizer, text):
    return longspan.read(fresh(), tokenizer, text, method=request.param, prefill_chunk=256, kv="int8")


def size_of(path):
    return sum(file.stat().st_size for file in path.glob("data-*"))


def test_saved_appended_and_opened(document, fresh, tokenizer, text, tmp_path):
    path = tmp_path / "a.longspan"
    answer = document.ask(ASK, 8)
    document.save(path)
    opened = longspan.Document.open(path, fresh(), tokenizer, verify=True)
    assert opened.ask(ASK, 8).tokens == answer.tokens and opened.contents.kv == "int8"
    assert json.loads((path / "manifest.json").read_text())["facts"]["kv"] == "int8"
    for one in (document, opened):
        one.append("\nAnd then it ended.")
    assert opened.ask(ASK, 8).tokens == document.ask(ASK, 8).tokens
    opened.save(path)
    again = longspan.Document.open(path, fresh(), tokenizer, verify=True)
    assert again.ask(ASK, 8).tokens == document.ask(ASK, 8).tokens and len(again.contents.segments) == 2


def test_a_reading_goes_on_and_has_the_same_bytes(fresh, tokenizer, text, tmp_path):
    class Enough(Exception):
        pass

    def done(stop, total):
        if stop >= 512:
            raise Enough

    options = {"kv": "int8", "prefill_chunk": 256}
    with pytest.raises(Enough):
        longspan.read(fresh(), tokenizer, text, out=tmp_path / "a", done=done, **options)
    with pytest.raises(DocumentError, match="another kv"):
        longspan.read(fresh(), tokenizer, text, out=tmp_path / "a", prefill_chunk=256)
    longspan.read(fresh(), tokenizer, text, out=tmp_path / "a", **options)
    longspan.read(fresh(), tokenizer, text, out=tmp_path / "b", **options)
    assert (tmp_path / "a" / "data-0000.bin").read_bytes() == (tmp_path / "b" / "data-0000.bin").read_bytes()


def test_it_is_a_quarter_of_fp32(reader, tokenizer, text, tmp_path):
    sizes = {}
    for kv in ("int8", "exact"):
        model = reader(hidden_size=256)  # heads of 128 channels
        longspan.read(model, tokenizer, text, method="full", window=100_000, kv=kv, out=tmp_path / kv)
        sizes[kv] = size_of(tmp_path / kv)
    assert sizes["int8"] < 0.29 * sizes["exact"]


def test_another_machine(document, fresh, tokenizer, tmp_path, monkeypatch):
    """Other kernels, and a name of the machine that is not this one's: within the canary's budget."""
    document.save(tmp_path / "a")
    monkeypatch.setattr(fingerprint, "machine_of", lambda *args: "another one")
    model = fresh()
    method = document.attachment().attender.method
    with longspan.extended(model, method, impl="torch"):
        opened = longspan.Document.open(tmp_path / "a", model, tokenizer)
        assert opened.ask(ASK, 4).tokens == document.ask(ASK, 4).tokens


def edited(path, change):
    held = json.loads((path / "manifest.json").read_text())
    del held["sha256"]
    change(held)
    (path / "manifest.json").write_text(json.dumps({"sha256": _sum(held), **held}))


def test_another_machine_sees_spoiled_codes(document, fresh, tokenizer, tmp_path, monkeypatch):
    document.save(tmp_path / "a")
    monkeypatch.setattr(fingerprint, "machine_of", lambda *args: "another one")
    with open(tmp_path / "a" / "data-0000.bin", "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        file.write(os.urandom(size))
    monkeypatch.setattr("longspan.documents.segments.edges", lambda stream, part: "")

    def without_edges(held):
        for segment in held["segments"]:
            for span in segment["spans"]:
                span["edges"] = ""

    edited(tmp_path / "a", without_edges)
    with pytest.raises(DocumentError, match="logits differ"):
        longspan.Document.open(tmp_path / "a", fresh(), tokenizer)


@pytest.mark.parametrize("back", [5, 20, 100])
def test_a_cache_goes_back_into_the_codes(document, back):
    """What follows is written behind the tokens that are left."""
    ids, cache = document.contents.ids, document.cache()
    with torch.inference_mode():
        forward(document.model, ids[:1], cache)  # whose kernel holds the addresses of before
        kept = cache.croppable(document.tokens - back)
        cache.crop(kept)
        for token in ids[kept : kept + 2].split(1):
            forward(document.model, token, cache)
        found = forward(document.model, ids[kept + 2 :], cache)
    assert cache.get_seq_length() == len(ids) and bool(found.isfinite().all())


def test_a_conversation_goes_on_behind_it(document):
    talk = Conversation(document)
    first, second = (talk.say(question, 6).tokens for question in (ASK, "Where do rivers run?"))
    alone = Conversation(document)
    assert alone.say(ASK, 6).tokens == first and alone.say("Where do rivers run?", 6).tokens == second
    assert document.ask(ASK, 6).tokens == first


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held["facts"].update(kv="int4"),
        lambda held: held["streams"][0].update(stands_for="int64"),
        lambda held: held["streams"][0].update(stands_for="bfloat16"),
        lambda held: held["streams"][0].update(stands_for=""),
        lambda held: held["streams"][1].update(name="strange"),
        lambda held: held["streams"][1].update(dtype="int32"),
    ],
)
def test_manifests_made_by_hand_are_refused(document, fresh, tokenizer, tmp_path, change):
    document.save(tmp_path / "a")
    edited(tmp_path / "a", change)
    with pytest.raises(LongspanError):
        longspan.Document.open(tmp_path / "a", fresh(), tokenizer)


def test_refused(fresh, tokenizer, text):
    with pytest.raises(DocumentError, match="kv must be one of exact, int8"):
        longspan.read(fresh(), tokenizer, text, kv="int4")
    with pytest.raises(DocumentError, match="multiple of 64"):
        longspan.read(fresh(), tokenizer, text, kv="int8", prefill_chunk=100)
