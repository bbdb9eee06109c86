"""vLLM with longspan over several processes: tensor parallelism and Ray's executor give the tokens of one process."""

from __future__ import annotations

import pytest

from longspan.bundled import heldout_text, load_bundled
from support.vllm_engine import answers

pytest.importorskip("vllm.v1")
pytestmark = pytest.mark.long

WINDOW = 512
NEW = 12
NEAR = 1e-3
CHOSEN = {"method": "longheads", "score": "bounds", "remap": "dca"}
METHODS = {"dca": {"method": "dca"}, "chosen chunks": CHOSEN, "chosen by all heads": {**CHOSEN, "share": "layer"}}
SPLIT = {
    "tensor-parallel": {"tensor_parallel_size": 2},
    "ray": {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"},
}


@pytest.fixture(scope="module")
def run(bundled, tmp_path_factory):
    """Answers to prompts of 1 to 5 windows, and to two of them again, which hit the first round's pages."""
    _, tokenizer = load_bundled()
    ids = tokenizer.encode(heldout_text()[:40_000])
    prompts = [ids[100 * n : 100 * n + length] for n, length in enumerate((40, 500, 700, 1500, 2500))]
    found = {}

    def run_once(method, split):
        """Of a method, split as named, or in one process; each engine starts once."""
        if (method, split) not in found:
            found[method, split] = answers(
                tmp_path_factory.mktemp(f"{method}-{split}".replace(" ", "-")),
                bundled,
                [prompts, prompts[2:4]],
                NEW,
                max_model_len=8 * WINDOW,
                max_num_batched_tokens=1024,
                additional_config={"longspan": METHODS[method]},
                **SPLIT.get(split, {}),
            )
        return found[method, split]

    return run_once


@pytest.mark.parametrize(
    ("method", "split"), [("dca", "tensor-parallel"), ("dca", "ray"), ("chosen chunks", "tensor-parallel")]
)
def test_the_tokens_of_one_process(run, method, split):
    if split == "ray":
        pytest.importorskip("ray")
    one, several = run(method, "none"), run(method, split)
    assert "error" not in one, one["log"][-3000:]
    assert "error" not in several, several["log"][-3000:]
    assert (one["ranks"], several["ranks"]) == (1, 2)
    assert several["attention"] == ["LongspanImpl"]
    assert several["log"].count("longspan is attached") == 1, "the first rank says it"
    for alone, together in zip(one["batches"], several["batches"], strict=True):
        for expected, found in zip(alone, together, strict=True):
            assert found["tokens"] == expected["tokens"]
            assert found["cached"] == expected["cached"]
            pairs = zip(found["logprobs"], expected["logprobs"], strict=True)
            assert max(abs(a - b) for a, b in pairs) < NEAR


def test_heads_that_choose_together_over_a_layer_are_refused(run):
    """They are in several processes, and nothing sums their scores there."""
    log = run("chosen by all heads", "tensor-parallel")["log"]
    assert "share='layer'" in log and "longspan is attached" not in log
