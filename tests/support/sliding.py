"""Perplexity of a text under a sliding window by the definitions, in plain loops: what the task is held to."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Plain(NamedTuple):
    """A perplexity, the tokens that were scored and the windows that were read."""

    value: float
    scored: int
    windows: int


def score_new(model, ids, *, window, stride, skip=1):
    """Press et al., 2021, arXiv 2012.15840: of the tokens from ``skip`` on the first window that has one scores it."""
    scored, read = {}, 0
    for end in [*range(window, len(ids), stride), len(ids)]:
        fresh = [n for n in range(max(end - window + 1, skip), end) if n not in scored]
        if fresh:
            losses = dict(enumerate(_losses(model, ids[end - window : end]), end - window + 1))
            scored |= {n: losses[n] for n in fresh}
            read += 1
    return Plain(math.exp(sum(scored.values()) / len(scored)), len(scored), read)


def whole_windows(model, ids, *, window, stride):
    """The code of An et al., 2024, arXiv 2402.17463: the mean over windows of the mean loss of each whole window."""
    each = [_losses(model, ids[begin : begin + window]) for begin in range(0, len(ids) - window + 1, stride)]
    mean = sum(sum(losses) / len(losses) for losses in each) / len(each)
    return Plain(math.exp(mean), sum(map(len, each)), len(each))


@torch.inference_mode()
def _losses(model, ids):
    """Nats of every token but the first."""
    logits = model(torch.tensor([ids])).logits[0]
    return [-float(logits[n - 1].double().log_softmax(-1)[ids[n]]) for n in range(1, len(ids))]
