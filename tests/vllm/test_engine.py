"""vLLM with longspan against longspan on transformers: the same tokens, and log-probabilities within 1e-3.

They run where vLLM is installed: ``make test-vllm``.
"""

from __future__ import annotations

import json
import random

import pytest
import torch

import longspan
from longspan.bundled import heldout_text, load_bundled
from support.vllm_engine import answers

pytest.importorskip("vllm.v1")
pytestmark = pytest.mark.long

WINDOW = 512
WINDOWS = (1, 1, 1, 2, 2, 3, 4, 6, 8, 16)
NEW = 16
NEAR = 1e-3
CHOSEN = {"score": "bounds", "remap": "dca"}
# What is asked of longspan in vLLM and on transformers, and a line of the report at the start.
METHODS = {
    "dca": ({"method": "dca"}, "dca", "chunk_size    384"),
    "chosen chunks": ({"method": "longheads", **CHOSEN}, longspan.LongHeads(**CHOSEN), "chunk_length  32"),
}
# Windows of 128 tokens, so that few pages hold texts of several; chunks of whole pages.
IN_SMALL_WINDOWS = {
    "dca": {"method": "dca", "window": 128},
    "chosen chunks": {"method": "longheads", "window": 128, "chunk_length": 32, "num_chunks": 4, **CHOSEN},
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """40 prompts of 1 to 16 windows; of each length two begin the text and two are from other places of it."""
    _, tokenizer = load_bundled()
    ids = tokenizer.encode(heldout_text()[:120_000])
    made = []
    for n in range(4):
        for m, windows in enumerate(WINDOWS):
            length = windows * WINDOW - NEW - 7 * n - m
            start = 0 if n < 2 else 1000 * n + 97 * m
            made.append(ids[start : start + length])
    assert len(made) == 40 and all(len(x) > WINDOW // 2 for x in made)
    return made


@pytest.fixture(scope="module", params=METHODS)
def method(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def served(method, bundled, prompts, tmp_path_factory):
    """One engine: chunked prefill, mixed batches, and a second round of some prompts, which hits the first's pages."""
    return answers(
        tmp_path_factory.mktemp("served"),
        bundled,
        [prompts, prompts[:10]],
        NEW,
        max_model_len=16 * WINDOW,
        max_num_batched_tokens=1024,
        max_num_seqs=12,
        additional_config={"longspan": METHODS[method][0]},
    )


def expected(model, prompt, answer):
    """The tokens and log-probabilities that a model gives where it has read the prompt and the answer so far."""
    ids = torch.tensor([prompt + answer["tokens"][:-1]])
    with torch.no_grad():
        logits = model(ids, logits_to_keep=len(answer["tokens"])).logits[0].float()
    logprobs = logits.log_softmax(dim=-1)
    best = logprobs.argmax(dim=-1)
    return best.tolist(), logprobs.gather(1, best[:, None])[:, 0]


def assert_equal(model, prompts, answered):
    for prompt, answer in zip(prompts, answered, strict=True):
        tokens, logprobs = expected(model, prompt, answer)
        assert answer["tokens"] == tokens, f"a prompt of {len(prompt)} tokens"
        assert (torch.tensor(answer["logprobs"]) - logprobs).abs().max() < NEAR


def test_tokens_and_log_probabilities_are_those_on_transformers(method, served, prompts):
    assert "error" not in served, served["log"][-3000:]
    model, _ = load_bundled()
    longspan.extend(model, METHODS[method][1])
    assert_equal(model, prompts, served["batches"][0])


def test_prefix_hits_change_nothing(served):
    first, second = served["batches"]
    assert sum(one["cached"] for one in first) > 20 * WINDOW, "prompts that begin alike share pages"
    assert all(one["cached"] > 0 for one in second)
    assert [one["tokens"] for one in second] == [one["tokens"] for one in first[:10]]


def test_the_start_says_what_was_attached(method, served, bundled):
    assert served["attention"] == ["LongspanImpl"]
    last = json.loads((bundled / "config.json").read_text())["num_hidden_layers"] - 1
    for line in ("longspan is attached", METHODS[method][2], f"layers 0-{last}: half layout, all channels"):
        assert line in served["log"]


@pytest.mark.parametrize("method", IN_SMALL_WINDOWS)
def test_preemption_changes_nothing(method, bundled, tmp_path):
    """100 requests of random lengths under few pages: some give theirs back as they grow, and begin again."""
    _, tokenizer = load_bundled()
    ids, draw = tokenizer.encode(heldout_text()[:120_000]), random.Random(0)
    places = [(draw.randrange(20_000), draw.randint(20, 400)) for _ in range(100)]
    asked = [ids[start : start + length] for start, length in places]
    runs = [
        answers(
            tmp_path,
            bundled,
            [asked],
            40,
            max_model_len=448,
            max_num_batched_tokens=256,
            num_gpu_blocks_override=pages,
            enable_prefix_caching=False,
            additional_config={"longspan": IN_SMALL_WINDOWS[method]},
        )
        for pages in (448 // 32 + 6, None)
    ]
    assert all("error" not in run for run in runs), [run["log"][-3000:] for run in runs]
    assert runs[0]["preemptions"] > 10 and runs[1]["preemptions"] == 0
    few, many = ([one["tokens"] for one in run["batches"][0]] for run in runs)
    assert few == many


def test_nothing_changes_unless_asked(bundled, prompts, tmp_path):
    """With the plugin and without it vLLM does the same, to the bit, on its own attention."""
    inside = [prompt[: WINDOW - NEW] for prompt in prompts[:6]]
    with_it, without = (
        answers(tmp_path, bundled, [inside], NEW, plugins=plugins, max_model_len=WINDOW)
        for plugins in ("longspan", "another")
    )
    assert "error" not in with_it, with_it["log"][-3000:]
    assert with_it["attention"] == ["CPUAttentionBackendImpl"] and "longspan is attached" not in with_it["log"]
    assert {key: with_it[key] for key in ("batches", "attention")} == {
        key: without[key] for key in ("batches", "attention")
    }
