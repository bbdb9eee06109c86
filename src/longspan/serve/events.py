"""What becomes of a request: the parts of its answer, and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from longspan.documents import Passage
from longspan.drafting import Drafts
from longspan.serve.messages import Call
from longspan.text.ends import Finish


@dataclass(frozen=True)
class ShownToken:
    """One token of an answer with its text.

    Attributes:
        text: of all tokens together, the answer's. begin: where it begins in the answer, in characters.
        logprob: see ``Token``. likeliest: texts and logprobs of the likeliest tokens in its place.
    """

    text: str
    begin: int
    logprob: float | None
    likeliest: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Delta:
    """A part of an answer: its text, the tokens since the last part, and the calls that came with it."""

    text: str
    tokens: tuple[ShownToken, ...]
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class PromptProgress:
    """How many tokens of a prompt of several prefill chunks are read, before its answer."""

    tokens: int
    prompt: int


@dataclass(frozen=True)
class AttendedPassages:
    """Passages of the whole answer, and of each of its tokens with its text.

    Attributes:
        error: why there are none, if they could not be computed.
    """

    answer: tuple[Passage, ...] = ()
    tokens: tuple[tuple[str, tuple[Passage, ...]], ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Finished:
    """The end of an answer.

    Attributes:
        prompt, cached, completion: tokens; ``cached`` are those of the prompt that were not read again.
        queued: seconds until its first step.
        prefill, decode: seconds of computing, of the prompt to the first token and of the tokens after it.
        turns: seconds between its steps, in which other requests and texts had their turns.
        attended: computes the passages; None if they were not requested.
        drafts: what was drafted and accepted; None if the server does not draft.
    """

    finish: Finish | Literal["tool_calls"]
    prompt: int
    cached: int
    completion: int
    queued: float
    prefill: float
    decode: float
    turns: float
    attended: Callable[[], AttendedPassages] | None
    drafts: Drafts | None = None


Event = Delta | PromptProgress | Finished | Exception
Emit = Callable[[Event], None]
