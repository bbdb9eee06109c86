"""Read a prompt once, then answer greedily: the same few lines for a stock and for an extended model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.errors import LongspanError
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.text.ends import end_tokens
from longspan_eval.perplexity import sliced_losses
from longspan_eval.sample import NOT_FINITE


@dataclass(frozen=True)
class Generated:
    """A model's output for one prompt.

    Attributes:
        losses: nats of each scored token of the prompt.
        prefill_seconds, decode_seconds: time for the prompt, and for the answer after its first token.
    """

    text: str
    losses: list[float]
    prefill_seconds: float
    decode_seconds: float


@torch.inference_mode()
def read(
    model: PreTrainedModel,
    tokenizer: Any,
    input_ids: Sequence[int],
    *,
    scored: Sequence[int] = (),
    max_new_tokens: int,
    until: Callable[[str], bool] | None = None,
) -> Generated:
    """One pass over the prompt for the losses of its ``scored`` tokens, then greedy tokens until the text will do.

    Raises:
        LongspanError: a loss or a logit is NaN or infinite.
    """
    ids = torch.tensor([list(input_ids)], device=model.device)
    begun = time.perf_counter()
    keep = len(input_ids) - (min(scored) - 1) if scored else 1
    logits, cache = prefill(model, ids, keep)
    losses = sliced_losses(logits[0], ids[0], scored)
    if not all(map(math.isfinite, losses)):
        raise LongspanError(NOT_FINITE)
    read_at = time.perf_counter()
    _, text = told(tokenizer, decode(model, logits[:, -1:], cache, max_new_tokens), until)
    return Generated(text, losses, read_at - begun, time.perf_counter() - read_at)


def prefill(model: PreTrainedModel, input_ids: Tensor, keep: int = 1, cache: Any = None) -> tuple[Tensor, Any]:
    """The logits ``[1, keep, V]`` of the last tokens of ``input_ids`` ``[1, N]``, and the cache.

    Args:
        cache: of the tokens before them.
    """
    more = {} if cache is None else {CACHE_ARGUMENT: cache}
    out = model(input_ids, use_cache=True, logits_to_keep=keep, **more)
    return out.logits, getattr(out, CACHE_ARGUMENT)


def told(tokenizer: Any, tokens: Iterable[int], until: Callable[[str], bool] | None = None) -> tuple[list[int], str]:
    """The tokens of an answer as they come, until their text will do, and that text."""
    so_far: list[int] = []
    for token in tokens:
        so_far.append(token)
        if until is not None and until(tokenizer.decode(so_far, skip_special_tokens=True)):
            break
    return so_far, tokenizer.decode(so_far, skip_special_tokens=True) if so_far else ""


def decode(
    model: PreTrainedModel, logits: Tensor, cache: Any, max_new_tokens: int, *, past_end: bool = False
) -> Iterator[int]:
    """Greedy tokens from the last logits ``[1, 1, V]`` of a prompt and its cache, up to an end-of-text token.

    Args:
        past_end: go on past an end-of-text token, to ``max_new_tokens`` whatever the answer is.

    Raises:
        LongspanError: a logit is NaN, or the greatest one infinite, so that no token is the likeliest.
    """
    stops = frozenset[int]() if past_end else end_tokens(model)
    for n in range(max_new_tokens):
        last = logits[0, -1]
        likeliest = last.argmax()  # a NaN is the greatest of all to it
        # Read as one, since each would wait for a GPU; fp32 has every id below 2^24.
        number, greatest = torch.stack((likeliest.float(), last.take(likeliest).float())).tolist()
        if not math.isfinite(greatest):
            raise LongspanError(NOT_FINITE)
        token = int(number)
        if token in stops:
            return
        yield token
        if n + 1 < max_new_tokens:
            out = model(torch.tensor([[token]], device=model.device), use_cache=True, **{CACHE_ARGUMENT: cache})
            logits = out.logits
