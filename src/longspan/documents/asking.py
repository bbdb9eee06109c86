"""Ask a document: a question and its answer in a cache of their own, which goes when the answer is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.documents.passages import Passage
from longspan.documents.writing import Writing
from longspan.drafting import Drafts
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.attach import drafts_of
from longspan.hf.cache import LongspanCache
from longspan.machine import usage
from longspan.text.ends import Finish

Stream = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """A model's answer.

    Attributes:
        text, tokens: the answer, and its ids; a token that ends it is one of them, and so are those of a stop string.
        finish: what ended it: "stop", a token or stop string, or "length", ``max_new_tokens``.
        passages: the sentences that its tokens attended to most, the first the most; None if it was not asked for.
        seconds: from the question to the last token. first_token_seconds: to the first one.
        bytes_read: from disk meanwhile, by the whole process; None if the system does not say.
        peak_anonymous: the most memory of the whole process meanwhile that was no file's (RssAnon), in bytes, of looks
            10 ms apart; None if the system does not say.
        drafts: what was drafted and accepted; None if the model does not draft.
    """

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    passages: tuple[Passage, ...] | None
    seconds: float
    first_token_seconds: float
    bytes_read: int | None
    peak_anonymous: int | None
    drafts: Drafts | None = None

    def __str__(self) -> str:
        return self.text


class _Clock:
    """A streamer that notes the time of the first token, and hands on to another one."""

    def __init__(self, inner: Writing) -> None:
        self._inner, self._tokens = inner, -1  # the prompt is handed over first
        self.began, self.first = time.perf_counter(), 0.0

    def put(self, value: Tensor) -> None:
        self._tokens += 1
        if self._tokens == 1:
            self.first = time.perf_counter() - self.began
        self._inner.put(value)

    def end(self) -> None:
        self._inner.end()


def answer(
    model: PreTrainedModel,
    tokenizer: Any,
    cache: LongspanCache,
    ids: Tensor,
    *,
    max_new_tokens: int,
    stream: Stream | None = None,
    options: dict[str, Any],
) -> Answer:
    """Let the model write after ``ids`` ``[T]``, of which the cache holds the first ones.

    Args:
        stream: called with text as it comes.
        options: of ``generate``, and ``seed``.
    """
    writing = Writing(model, tokenizer, options, stream)
    clock, read = _Clock(writing), usage.bytes_read()
    prompt = ids[None].to(model.device)
    # Without the mask generate would look for padding among the document's tokens.
    with usage.Peak() as memory, torch.inference_mode(), writing.settings(max_new_tokens) as settings:
        if model.generation_config.pad_token_id is None and "pad_token_id" not in settings:
            settings["pad_token_id"] = 0  # of one row none is padded, and without it generate has a remark to make
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), streamer=clock, **settings, **{CACHE_ARGUMENT: cache}
        )
    seconds, after = time.perf_counter() - clock.began, usage.bytes_read()
    rows = output if isinstance(output, Tensor) else output.sequences
    tokens = rows[0, len(ids) :].tolist()
    text, finish = writing.result(tokens, max_new_tokens)
    disk = None if read is None or after is None else after - read
    drafts = drafts_of(model)
    return Answer(text, tuple(tokens), finish, None, seconds, clock.first, disk, memory.most, drafts)
