"""One answer of ``generate``: greedy unless sampled, streamed, and ended before a stop string."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria

from longspan.errors import DocumentError, whole
from longspan.text.detokenize import TokenStreamer
from longspan.text.ends import Finish, end_tokens, finish_of

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
_MOST_SEED = 2**63  # torch's generators take no more

_SET = {"input_ids", "inputs", "inputs_embeds", "attention_mask", "position_ids", "past_key_values", "cache"}
_SET |= {"streamer", "use_cache", "cache_implementation"}
_SEVERAL = {"num_beams": 1, "num_return_sequences": 1, "prompt_lookup_num_tokens": None, "assistant_model": None}


def refuse_options(options: dict[str, Any]) -> None:
    """Raise ``DocumentError`` for options of ``generate`` that ask sets, that cannot be, or are for several answers."""
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
    seed = options.get("seed")
    if seed is not None and ((number := whole(seed)) is None or not 0 <= number < _MOST_SEED):
        raise DocumentError(f"seed must be an integer from 0 to {_MOST_SEED - 1:,}, not {seed!r:.40}")
    stops_of(options)


def stops_of(options: dict[str, Any], own: Any = None) -> tuple[str, ...]:
    """The texts that end an answer, by ``stop_strings`` of these options, or of the model's ``own`` generation config.

    Raises:
        DocumentError: one is no text, or empty.
    """
    config = options.get("generation_config") or own
    given = options.get("stop_strings") or getattr(config, "stop_strings", None) or ()
    stops = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (list, tuple)) else (None,)
    if not all(isinstance(one, str) and one for one in stops):
        raise DocumentError(f"stop_strings must be texts, none of them empty, not {given!r:.80}")
    return stops


class Writing:
    """What follows one answer while it is written, as a streamer of ``generate``.

    Args:
        options: of ``generate``, with ``seed``.
        tell: called with text as it comes.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, options: dict[str, Any], tell: Callable[[str], None] | None
    ) -> None:
        self._model, self._tokenizer, self._tell = model, tokenizer, tell
        self._own = {name: x for name, x in options.items() if name not in ("seed", "stop_strings")}
        self._seed, stops = options.get("seed"), stops_of(options, model.generation_config)
        self._parts: list[str] = []
        self._streamer = None if tell is None and not stops else TokenStreamer(tokenizer, self._told, stops)

    def _told(self, text: str) -> None:
        self._parts.append(text)
        if self._tell is not None:
            self._tell(text)

    def put(self, value: Any) -> None:
        if self._streamer is not None:
            self._streamer.put(value)

    def end(self) -> None:
        if self._streamer is not None:
            self._streamer.end()

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._streamer is not None and self._streamer.stopped

    @contextmanager
    def settings(self, max_new_tokens: int) -> Iterator[dict[str, Any]]:
        """Further arguments of the call of ``generate`` in this block, whose tokens are those of the seed."""
        criteria = [*self._own.get("stopping_criteria", ()), _AtStop(self)]
        settings = {**ONE_ANSWER, "max_new_tokens": max_new_tokens, "tokenizer": self._tokenizer, **self._own}
        if "generation_config" in self._own and "do_sample" not in self._own:  # the caller's own, which says itself
            del settings["do_sample"]
        settings |= {"stop_strings": None, "stopping_criteria": criteria}
        with torch.random.fork_rng(_gpus(self._model), enabled=self._seed is not None):
            if self._seed is not None:
                torch.manual_seed(self._seed)
            yield settings

    def result(self, tokens: list[int], max_new_tokens: int) -> tuple[str, Finish]:
        """The text of the answer of these tokens, and what ended it."""
        ended = bool(tokens) and tokens[-1] in end_tokens(self._model, self._own)
        finish = finish_of(ended=ended, stopped=self.stopped, full=len(tokens) >= max_new_tokens) or "stop"
        if self.stopped:
            return "".join(self._parts), finish
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True)), finish


class _AtStop(StoppingCriteria):
    """Ends an answer when its text has a stop string: ``generate`` streams a token before it asks."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        return torch.full((len(input_ids),), self._writing.stopped, dtype=torch.bool, device=input_ids.device)


def _gpus(model: PreTrainedModel) -> list[torch.device]:
    """The GPUs whose generator the seed sets; that of the CPU is in any case."""
    return [model.device] if model.device.type == "cuda" else []
