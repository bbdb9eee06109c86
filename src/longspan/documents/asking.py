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
from longspan.errors import DocumentError
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.cache import LongspanCache
from longspan.machine import usage
from longspan.text.detokenize import TokenStreamer

Stream = Callable[[str], None]
# One greedy answer that is streamed, whatever the model's generation config says.
ONE_ANSWER = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "return_dict_in_generate": False,
    "prompt_lookup_num_tokens": None,
    "use_cache": True,
    "cache_implementation": None,
}


@dataclass(frozen=True)
class Answer:
    """A model's answer.

    Attributes:
        text, tokens: the answer, and its ids; a token that ends it is one of them.
        passages: the sentences that its tokens attended to most, the first the most; None if it was not asked for.
        seconds: from the question to the last token. first_token_seconds: to the first one.
        bytes_read: from disk meanwhile, by the whole process; None if the system does not say.
        peak_anonymous: the most memory of the whole process meanwhile that was no file's (RssAnon), in bytes, of looks
            10 ms apart; None if the system does not say.
    """

    text: str
    tokens: tuple[int, ...]
    passages: tuple[Passage, ...] | None
    seconds: float
    first_token_seconds: float
    bytes_read: int | None
    peak_anonymous: int | None

    def __str__(self) -> str:
        return self.text


_SET = {"input_ids", "inputs", "inputs_embeds", "attention_mask", "position_ids", "past_key_values", "cache"}
_SET |= {"streamer", "use_cache", "cache_implementation"}
_SEVERAL = {"num_beams": 1, "num_return_sequences": 1, "prompt_lookup_num_tokens": None, "assistant_model": None}


def refuse_options(options: dict[str, Any]) -> None:
    """Raise ``DocumentError`` for options of ``generate`` that ask sets, or that are for several answers or tokens."""
    if given := sorted(_SET & set(options)):
        raise DocumentError(f"{', '.join(given)}: set by ask itself; leave {'it' if len(given) == 1 else 'them'} out")
    config = options.get("generation_config")
    for name, single in _SEVERAL.items():
        value = options.get(name, getattr(config, name, None))
        if value is not None and value != single:
            raise DocumentError(
                f"{name}={value!r:.40} is for several sequences or tokens at a time, and ask writes one answer, token "
                "by token; leave it out"
            )


class _Follower:
    """Record the time of the first token, and pass the text on if a caller wants it."""

    def __init__(self, tokenizer: Any, stream: Stream | None) -> None:
        self._printer = None if stream is None else TokenStreamer(tokenizer, stream)
        self._tokens = -1  # the prompt is handed over first
        self.began, self.first = time.perf_counter(), 0.0

    def put(self, value: Tensor) -> None:
        self._tokens += 1
        if self._tokens == 1:
            self.first = time.perf_counter() - self.began
        if self._printer is not None:
            self._printer.put(value)

    def end(self) -> None:
        if self._printer is not None:
            self._printer.end()


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
        options: of ``generate``.
    """
    follower, read = _Follower(tokenizer, stream), usage.bytes_read()
    prompt = ids[None].to(model.device)
    settings = {**ONE_ANSWER, "max_new_tokens": max_new_tokens, "tokenizer": tokenizer, **options}
    if model.generation_config.pad_token_id is None and "pad_token_id" not in settings:
        settings["pad_token_id"] = 0  # of one row none is padded, and without it generate has a remark to make
    # Without the mask generate would look for padding among the document's tokens.
    with usage.Peak() as memory, torch.inference_mode():
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), streamer=follower, **settings, **{CACHE_ARGUMENT: cache}
        )
    seconds, after = time.perf_counter() - follower.began, usage.bytes_read()
    rows = output if isinstance(output, Tensor) else output.sequences
    tokens = rows[0, len(ids) :].tolist()
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    disk = None if read is None or after is None else after - read
    return Answer(text, tuple(tokens), None, seconds, follower.first, disk, memory.most)
