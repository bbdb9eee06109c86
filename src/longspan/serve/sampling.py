"""Sampling of the next token, with transformers' logits processors."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

_GREEDY_BELOW = 1e-5  # below, scores over the temperature leave the range of fp32


@dataclass(frozen=True)
class Sampling:
    """The sampling options of a request.

    Attributes:
        temperature, top_p: None takes the value of the model's generation config; greedy if that has none.
            A temperature below 1e-5 is greedy.
        seed: of this request's own generator; None takes one at random.
        alternatives: how many of the likeliest tokens are reported beside each; None reports no probabilities.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    alternatives: int | None = None


@dataclass(frozen=True)
class Token:
    """A sampled token.

    Attributes:
        id, logprob: it and the log of its probability under the model, before temperature and top_p.
        likeliest: ids and logprobs of the likeliest tokens.
    """

    id: int
    logprob: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Samples the tokens of one request, with ``max_tokens`` at most after those of its prompt."""

    def __init__(self, model: PreTrainedModel, sampling: Sampling, prompt_tokens: int, max_tokens: int) -> None:
        config = _config(model.generation_config, sampling)
        config.max_length = prompt_tokens + max_tokens
        model._prepare_special_tokens(config, device=model.device)  # of which some processors ask
        self._sampling, self._samples = sampling, bool(config.do_sample)
        self._processors = model._get_logits_processor(
            generation_config=config, input_ids_seq_length=prompt_tokens, device=str(model.device)
        )
        self._generator = torch.Generator(device=model.device)
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed % 2**63)

    def __call__(self, ids: Tensor, logits: Tensor) -> Token:
        """The token after ``ids`` ``[T]``, of the last one's logits ``[V]``."""
        raw = logits.float()
        scores = self._processors(ids[None].to(raw.device), raw[None].clone())[0] if self._processors else raw
        if self._samples:
            chosen = int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))
        else:
            chosen = int(scores.argmax())
        many = self._sampling.alternatives
        if many is None:
            return Token(chosen)
        logprobs = raw.log_softmax(-1)
        best = logprobs.topk(min(many, len(logprobs)))
        likeliest = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        return Token(chosen, float(logprobs[chosen]), likeliest)


def _config(own: Any, sampling: Sampling) -> GenerationConfig:
    """The model's generation config with what a request asks for; what both leave out is transformers' default."""
    config: GenerationConfig = deepcopy(own)
    if sampling.temperature is not None and sampling.temperature < _GREEDY_BELOW:
        config.do_sample = False
    elif sampling.temperature is not None:
        config.do_sample, config.temperature = True, sampling.temperature
        config.top_k, config.top_p = 0, 1.0  # a request that samples has the API's defaults, not the model's
        config.min_p = config.top_h = config.typical_p = config.epsilon_cutoff = config.eta_cutoff = None
    if sampling.top_p is not None:
        config.top_p = sampling.top_p
        if sampling.temperature is None and sampling.top_p < 1:
            config.do_sample, config.top_k = True, config.top_k or 0
    for name, value in config._get_default_generation_params().items():
        if getattr(config, name, None) is None:
            setattr(config, name, value)
    return config
