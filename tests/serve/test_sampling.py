"""Options of the model's generation config, which the server's answers follow as `generate` does."""

from __future__ import annotations

import pytest
import torch

from longspan.serve.sampling import Sampler, Sampling

PROMPT = "The road that they took"


@pytest.fixture
def greedy(bundled):
    """The ids of a prompt, and of the greedy answer to it."""
    model, tokenizer = bundled
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    return ids[0], model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :].tolist()


OPTIONS = [
    ("min_new_tokens", lambda said: 6),
    ("min_length", lambda said: 200),
    ("bad_words_ids", lambda said: [[said[1]]]),
    ("exponential_decay_length_penalty", lambda said: (2, 1.2)),
    ("forced_eos_token_id", lambda said: said[0]),
]


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize(("name", "value"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_options_of_the_generation_config(served, bundled, greedy, monkeypatch, name, value):
    (model, tokenizer), (ids, said) = bundled, greedy
    monkeypatch.setattr(model.generation_config, "eos_token_id", said[2])
    monkeypatch.setattr(model.generation_config, name, value(said))
    expected = model.generate(ids[None], max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = served.http.post("/v1/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == len(expected)
    shown = expected[:-1] if expected[-1] == said[2] else expected
    assert answer["choices"][0]["text"] == tokenizer.decode(shown, skip_special_tokens=True)


@pytest.mark.parametrize(("asked", "most"), [({}, 50), ({"temperature": 2.0}, None), ({"top_p": 0.99}, None)])
def test_what_a_request_and_the_config_leave_out(bundled, monkeypatch, asked, most):
    model, _ = bundled
    monkeypatch.setattr(model.generation_config, "do_sample", True)
    scores = Sampler(model, Sampling(**asked), 1, 1)._processors(torch.tensor([[0]]), torch.zeros(1, 200).normal_())
    kept = int(scores.isfinite().sum())
    assert kept == most if most is not None else kept > 50, "transformers' default is the 50 likeliest tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_p", 0.5), ("top_h", 0.3), ("typical_p", 0.2), ("epsilon_cutoff", 0.1), ("eta_cutoff", 0.1)],
)
def test_a_request_with_a_temperature_draws_from_all_tokens(bundled, monkeypatch, name, value):
    model, _ = bundled
    monkeypatch.setattr(model.generation_config, "do_sample", True)
    monkeypatch.setattr(model.generation_config, name, value, raising=False)
    ids, scores = torch.tensor([[0]]), torch.linspace(0, 4, 40)[None]
    own, asked = (Sampler(model, sampling, 1, 1)._processors for sampling in (Sampling(), Sampling(temperature=1.0)))
    assert not own(ids, scores.clone()).isfinite().all() and torch.equal(asked(ids, scores.clone()), scores)
