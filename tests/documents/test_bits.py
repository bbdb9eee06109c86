"""A document answers as the model does that reads the same text in the same prefill chunks: to the bit."""

from __future__ import annotations

import copy

import pytest
import torch

import longspan
from longspan.documents import streams
from longspan.documents.contents import Contents, attached
from longspan.documents.reading import Unnamed, forward, read_on
from longspan.documents.state import state_bytes, state_from
from longspan.hf import tiers
from longspan.memory import Spill
from longspan.methods import METHODS
from support.cases import WINDOW, build
from support.hf_models import _COMMON, gemma3n, gemma4, make, mllama, prompts
from support.hf_models import build as build_model
from support.variants import VARIANTS

TOKENS, PREFILL_CHUNK, STEPS = 221, 50, 4
PAGE = 64  # tokens of the test models in a page of memory, or of two
CASES = [(name, options) for name in METHODS for options in [{}, *VARIANTS.get(name, [])]]


def words(options):
    return ",".join(f"{k}={v}" for k, v in options.items()) or "defaults"


@torch.inference_mode()
def said(model, cache, question):
    """The logits of a question, and of a few tokens after it, one by one."""
    found = [forward(model, question, cache, len(question))]
    for _ in range(STEPS):
        found.append(forward(model, found[-1][-1:].argmax(-1), cache))
    return torch.cat(found)


def read(model, ids, prefill_chunk=PREFILL_CHUNK, contents=None):
    more = torch.zeros(len(ids), 2, dtype=torch.int64)
    contents = (Contents() if contents is None else contents).with_text(ids, more, "", [])
    return read_on(model, attached(model), contents, prefill_chunk, Unnamed())


@torch.inference_mode()
def in_one_process(model, ids, prefill_chunk=PREFILL_CHUNK):
    cache = longspan.new_cache(model)
    for part in ids.split(prefill_chunk):
        forward(model, part, cache)
    return cache


def same(model, question, ids=None, prefill_chunk=PREFILL_CHUNK):
    ids = prompts(1, TOKENS)[0] if ids is None else ids
    expected = said(model, in_one_process(model, ids, prefill_chunk), question)
    contents = read(model, ids, prefill_chunk)
    assert torch.equal(said(model, contents.cache(model, attached(model)), question), expected)
    # A question leaves nothing behind, and what is small survives a file.
    contents = contents.__class__(**{**vars(contents), "state": state_from(state_bytes(contents.state))})
    assert torch.equal(said(model, contents.cache(model, attached(model)), question), expected)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "tokens", [4 * PAGE, 4 * PAGE + 1], ids=["pages are full", "the last prefill chunk is one token"]
)
def test_one_token_after_mapped_memory(model, question, name, tokens):
    """A single token is written by the decoding kernel itself, which must see the room of mapped memory."""
    with longspan.extended(model, build(name, {}).method, window=WINDOW):
        same(model, question[:1], prompts(1, tokens)[0], prefill_chunk=PAGE)


# Each method at its defaults, and every other of its variants.
SOME = [
    pytest.param(name, options, id=f"{name}-{words(options)}", marks=() if not options or n % 2 else pytest.mark.long)
    for n, (name, options) in enumerate(CASES)
]


@pytest.mark.parametrize(("name", "options"), SOME)
def test_every_method(model, question, name, options):
    with longspan.extended(model, build(name, options).method, window=WINDOW):
        same(model, question)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", METHODS)
def test_every_dtype(question, name, dtype):
    model = make("llama", dtype)
    with longspan.extended(model, name):
        same(model, question)


@pytest.mark.parametrize("tier", [pytest.param("host", marks=pytest.mark.long), "disk", "auto"])
@pytest.mark.parametrize("name", METHODS)
def test_every_tier(model, question, name, tier, tmp_path):
    with longspan.extended(model, name, kv_tier=tier, kv_dir=tmp_path if tier == "disk" else None):
        same(model, question)


@pytest.mark.parametrize("impl", ["torch", "reference"])
@pytest.mark.parametrize("name", ["dca", "longheads", "esa", "infllm"])
def test_other_kernels(model, question, name, impl):
    with longspan.extended(model, name, impl=impl):
        same(model, question)


@pytest.mark.parametrize("family", ["gemma2", "smollm3", "phi", "gpt_oss", "hunyuan_v1_dense"])
@pytest.mark.parametrize("name", ["dca", "longheads:score=bounds"])
def test_layers_of_every_kind(question, family, name):
    """Sliding windows, layers without positions, part of the channels, sinks, norms after the rotation."""
    model = make(family)
    with longspan.extended(model, name):
        same(model, question)


@pytest.mark.parametrize("make_it", [gemma3n, gemma4, mllama])
def test_layers_that_keep_nothing(question, make_it):
    """They attend to the keys of earlier layers, or to images."""
    model = make_it()
    with longspan.extended(model, "dca"):
        same(model, question)


@pytest.mark.parametrize("name", ["dca", "longheads:score=bounds", "rerope", "esa"])
def test_keys_wider_than_values(question, name):
    """Multi-head latent attention: the pages that keys and values lie in end at different tokens."""
    ranks, sizes = {"kv_lora_rank": 16, "q_lora_rank": 24}, {"qk_nope_head_dim": 16, "v_head_dim": 16}
    own = {**ranks, **sizes, "qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4}
    model = build_model("minicpm3", {**_COMMON, **own})
    with longspan.extended(model, name):
        same(model, question, prompts(1, 200)[0])  # not where both end, as at 256


@pytest.mark.parametrize(("method", "score"), [("esa", {}), ("longheads", {"score": "token_max"})])
def test_reduced_scores(model, question, method, score):
    texts = [prompts(1, 64, seed)[0] for seed in range(8)]
    calibration = longspan.calibrate(model, texts, progress=False, tokens=512)
    with longspan.extended(model, METHODS[method](**score), calibration=calibration):
        same(model, question)
        same(model, question[:1])  # a token that comes alone


@pytest.mark.parametrize("name", ["dca", "longheads", "esa", "infllm", "dynamic-ntk"])
@pytest.mark.parametrize("tokens", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (5, 64, 256)), 65])
def test_every_length(model, question, name, tokens):
    """Shorter than a prefill chunk, and ends at a page."""
    with longspan.extended(model, name):
        same(model, question, prompts(1, tokens)[0])


@pytest.mark.parametrize("name", ["full", "rerope", "longheads", "longheads:score=bounds", "esa", "infllm"])
def test_what_is_appended(model, question, name):
    """Another segment begins within a page of the one before."""
    first, then = prompts(1, 130)[0], prompts(1, 147, seed=3)[0]
    with longspan.extended(model, name):
        cache = in_one_process(model, first)
        with torch.inference_mode():
            for part in then.split(PREFILL_CHUNK):
                forward(model, part, cache)
        contents = read(model, then, contents=read(model, first))
        assert len(contents.segments) > 1
        assert torch.equal(said(model, contents.cache(model, attached(model)), question), said(model, cache, question))


def test_a_long_answer_goes_on_where_there_is_room(model):
    """What is written behind the text needs more than the pages that are there at first."""
    ids, more = prompts(1, TOKENS)[0], prompts(1, 700, seed=5)[0]
    with longspan.extended(model, "longheads"):
        expected = said(model, in_one_process(model, ids), more)
        assert torch.equal(said(model, read(model, ids).cache(model, attached(model)), more), expected)


@pytest.mark.parametrize("family", ["llama", "smollm3"])
def test_rows_of_a_batch_and_copies(family, question):
    """Beams copy what is mapped, that of layers which stayed stock too."""
    model = make(family)
    with longspan.extended(model, "longheads"), torch.inference_mode():
        contents = read(model, prompts(1, TOKENS)[0])
        cache, twin = (contents.cache(model, attached(model)) for _ in range(2))
        twin.batch_repeat_interleave(2)
        both = model(question.repeat(2, 1), past_key_values=twin).logits
        copied = model(question[None], past_key_values=copy.deepcopy(cache)).logits
        alone = model(question[None], past_key_values=cache).logits
        assert torch.equal(copied, alone)
        torch.testing.assert_close(both, alone.expand_as(both))


def test_without_mapping(model, question, monkeypatch):
    """A system that cannot map files at chosen addresses reads them."""
    monkeypatch.setattr("longspan.memory.segments.can_map", lambda: False)
    for name in ("dca", "longheads", "infllm"):
        with longspan.extended(model, name):
            same(model, question)


@pytest.fixture
def laid(monkeypatch):
    """Where each stream of a document was asked to lie: True for the host."""
    places, lay = [], streams.lay

    def told(kind, parts, length, *, host, access):
        places.append(host)
        return lay(kind, parts, length, host=host, access=access)

    monkeypatch.setattr(streams, "lay", told)
    return places


@pytest.mark.parametrize("room", [True, False])
def test_a_document_begins_on_a_gpu_that_has_room_for_it(model, question, laid, monkeypatch, room):
    """With ``kv_tier="auto"``; the device is the CPU, and what is asked about it is answered as for a GPU."""
    monkeypatch.setattr(streams, "stays_on_host", lambda tier, device, needed: tier != "auto" or not room)
    with longspan.extended(model, "longheads", kv_tier="auto"):
        same(model, question)
    assert laid and any(laid) is not room


def test_files_are_brought_to_a_gpu_while_there_is_room(monkeypatch):
    free = {"cuda": 1000, "cpu": 0}  # the host's memory is not asked for: the files are mapped there
    # The test sets how much memory is free.
    monkeypatch.setattr(tiers, "free_memory", lambda device: free[device.type])
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [streams.stays_on_host(tier, gpu, 800) for tier in ("device", "host", "disk", "auto")] == [
        False, True, True, False,
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="memory of cuda runs short, so keys and values move from tier 'device' to 'h"):
        assert streams.stays_on_host("auto", gpu, 801)
    assert streams.stays_on_host("auto", cpu, 10**9)  # one memory, in which they are mapped
    # A system that does not say.
    monkeypatch.setattr(tiers, "free_memory", lambda device: None)
    assert not streams.stays_on_host("auto", gpu, 10**12)


def test_a_gpu_that_refuses_memory_leaves_a_document_on_the_host(model, question, laid, monkeypatch):
    asked, lay = [], streams.lay

    def refuses(kind, parts, length, *, host, access):
        asked.append(host)
        if not host and len(asked) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return lay(kind, parts, length, host=host, access=access)

    class OnGPU(Spill):
        def below(self, tier, device):
            return super().below(tier, torch.device("cuda"))

    ids = prompts(1, TOKENS)[0]
    with longspan.extended(model, "longheads", kv_tier="auto"):
        expected = said(model, in_one_process(model, ids), question)
        contents = read(model, ids)
        monkeypatch.setattr(streams, "stays_on_host", lambda *_: False)
        monkeypatch.setattr(streams, "new_spill", lambda: OnGPU(lambda device: None))
        monkeypatch.setattr(streams, "lay", refuses)
        with pytest.warns(UserWarning, match="was refused, so keys and values move from tier 'device' to 'host'"):
            cache = contents.cache(model, attached(model))
        assert asked[:3] == [False] * 3 and any(asked[3:])
        assert torch.equal(said(model, cache, question), expected)
    asked.clear()
    with longspan.extended(model, "longheads"), pytest.raises(torch.OutOfMemoryError):
        read(model, ids).cache(model, attached(model))  # it was told to keep them there
