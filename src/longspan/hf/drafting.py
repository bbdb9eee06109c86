"""Drafted decoding: one forward verifies several tokens of an answer, and the next steps take what it computed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.drafting import Drafter, DraftLengths, Drafts, Lookup, Record
from longspan.drafting.lengths import MOST
from longspan.errors import LongspanError
from longspan.hf.cache import LongspanCache

Draft = Literal["auto", "lookup"]
_IDLE = 8  # drafters that are kept for later answers


def check_draft(draft: object) -> None:
    """Raise ``LongspanError`` unless it is the name of a drafter or None."""
    if draft is not None and draft not in get_args(Draft):
        raise LongspanError(f"draft must be one of {', '.join(get_args(Draft))}, or None, not {draft!r:.40}")


class Drafting:
    """The drafts of a model's answers.

    Args:
        draft: the drafter's name; ``"auto"`` leaves alone what cannot be drafted, such as beams.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft, self.record = draft, Record()
        self._idle: deque[Drafter] = deque(maxlen=_IDLE)  # which threads may share

    def drafter(self) -> Drafter:
        """One that no answer uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return Lookup()

    def take_back(self, drafters: list[Drafter]) -> None:
        """Their answer has ended."""
        self._idle.extend(drafters)

    def lengths(self) -> DraftLengths:
        """That of a new answer."""
        return DraftLengths(self.record)

    def leave_alone(self, what: str) -> None:
        """An answer cannot be drafted: raise ``LongspanError`` unless ``"auto"`` decides."""
        if self.draft != "auto":
            raise LongspanError(
                f"{what} cannot be drafted, as draft={self.draft!r} demands; call longspan.extend with draft='auto', "
                "which decodes them without drafts, or with draft=None"
            )


@dataclass
class _Verified:
    """What one forward computed of a token and of guesses after it.

    Attributes:
        guesses: ``[B, n]``. out: what the model returned, with logits ``[B, n + 1, V]``.
        given: how many of the guesses the answer has by now.
    """

    guesses: Tensor
    kind: str
    out: Any
    given: int = 0

    @property
    def left(self) -> int:
        return self.guesses.shape[1] - self.given


class DraftedAnswer:
    """The forwards of an answer, or of up to eight rows of a batch, which accept as many as the row that accepts least.

    Attributes:
        tokens: ``[B, T]`` int64, the text so far, the next forward's token the last one; set before each forward.
        drafts: the count so far.
    """

    def __init__(self, drafting: Drafting) -> None:
        self.tokens: Tensor | None = None
        self.drafts = Drafts()
        self._stop, self._ends = 0, frozenset[int]()
        self._drafting, self._lengths = drafting, drafting.lengths()
        self._drafters: list[Drafter] = []
        self._cache: LongspanCache | None = None
        self._host: Tensor | None = None  # the text so far, in the memory of the CPU
        self._verified: _Verified | None = None

    def owns(self, cache: LongspanCache) -> bool:
        """Whether the answer's tokens are in this cache: what runs beside it, as guidance does, has one of its own."""
        return self._cache is None or cache is self._cache

    def follow(self, stop: int, ends: frozenset[int]) -> None:
        """Draft from now on, for a text of ``stop`` tokens at most, which ends with one of the ids ``ends``."""
        self._stop, self._ends = stop, ends

    def step(self, cache: LongspanCache, forward: Callable[..., Any], arguments: Mapping[str, Any], keeps: bool) -> Any:
        """What the model returns for one token in each row, which was no guess.

        Args:
            arguments: those of ``forward``, by name. keeps: whether it takes ``logits_to_keep``.
        """
        ids: Tensor = arguments["input_ids"]
        self.settle()
        self._cache = cache
        began = time.perf_counter()
        guesses, kind = self._propose(ids)
        drafted = 0 if guesses is None else guesses.shape[1]
        self._lengths.looked(time.perf_counter() - began)
        began = time.perf_counter()
        if guesses is None:
            out = forward(**arguments)
        else:
            out = _verifying(cache, drafted, forward, _longer(arguments, guesses, keeps))
        out.logits[:1, -1, :1].tolist()  # waits for a device
        self._lengths.took(drafted, time.perf_counter() - began)
        if guesses is None:
            return out
        self.drafts.verifications += 1
        self.drafts.drafted += drafted
        self._verified = _Verified(guesses, kind, replace(out, logits=out.logits[:, -drafted - 1 :]))
        return replace(out, logits=self._verified.out.logits[:, :1])

    def given(self, ids: Tensor) -> Any:
        """What the model returned for tokens ``[B, 1]`` when they were guesses; None if they were not."""
        held = self._verified
        if held is None or not held.left or not torch.equal(held.guesses[:, held.given], ids[:, 0]):
            return None
        held.given += 1
        return replace(held.out, logits=held.out.logits[:, held.given : held.given + 1])

    def settle(self, *, ended: bool = False) -> None:
        """Let the cache hold the tokens that the model was called with and no guesses.

        Args:
            ended: whether the answer is there; then no token says that the next guess was wrong.
        """
        held, self._verified = self._verified, None
        if held is None:
            return
        self.drafts.accepted += held.given
        self._lengths.accepted(held.kind, held.guesses.shape[1], held.given, ended=ended)
        if held.left:
            assert self._cache is not None
            self._cache.crop(-held.left)

    def end(self) -> None:
        """The answer is there, or was broken off."""
        try:
            self.settle(ended=True)
        finally:
            self._drafting.take_back(self._drafters)
            self._drafters, self._cache, self._host = [], None, None

    def _propose(self, ids: Tensor) -> tuple[Tensor | None, str]:
        """Guesses ``[B, n]`` of what follows ``ids`` ``[B, 1]``, or None, and their kind."""
        text = self._text()
        # Packed weights multiply more rows than those of one longest draft in another way than single tokens.
        most = 0 if text is None else min((MOST + 1) // len(text) - 1, self._stop - text.shape[1] - 1)
        if text is None or most < 1 or not self._lengths.affords or not torch.equal(text[:, -1:], ids.cpu()):
            return None, ""
        if not self._drafters:
            self._drafters = [self._drafting.drafter() for _ in text]
            for drafter, row in zip(self._drafters, text, strict=True):
                drafter.begin(row)
        proposals = [one.propose(row, most) for one, row in zip(self._drafters, text, strict=True)]
        rows = [self._until_end(one.tokens) for one in proposals]
        kind = min(one.kind for one in proposals) + (f" in {len(rows)} rows" if len(rows) > 1 else "")
        n = self._lengths.length(kind, min(map(len, rows)))
        return torch.tensor([row[:n] for row in rows], dtype=ids.dtype, device=ids.device) if n else None, kind

    def _text(self) -> Tensor | None:
        """``tokens`` in the memory of the CPU, of which only new ones are brought there."""
        text, known = self.tokens, self._host
        if text is None or text.device.type == "cpu":
            return text
        if known is None or len(known) != len(text) or known.shape[1] > text.shape[1]:
            self._host = text.cpu()
        else:
            self._host = torch.cat((known, text[:, known.shape[1] :].cpu()), dim=1)
        return self._host

    def _until_end(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        end = next((n for n, token in enumerate(tokens, 1) if token in self._ends), len(tokens))
        return tokens[:end]


def _verifying(cache: LongspanCache, drafted: int, forward: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """A forward of a token and of guesses after it; one that fails leaves no guesses in the cache."""
    past = cache.get_seq_length()
    cache.calls.guesses = drafted
    try:
        return forward(**arguments)
    except BaseException:
        cache.calls.guesses = 0
        with suppress(LongspanError):  # a cache that was filled in part stays so, and is refused
            cache.crop(past + 1)
        raise


def _longer(arguments: Mapping[str, Any], guesses: Tensor, keeps: bool) -> dict[str, Any]:
    """A step's arguments with ``guesses`` ``[B, n]`` behind its tokens."""
    n = guesses.shape[1]
    longer = {**arguments, "input_ids": torch.cat((arguments["input_ids"], guesses), dim=1)}
    for name in "position_ids", "cache_position":
        if (places := arguments.get(name)) is not None:
            longer[name] = places[..., -1:] + torch.arange(n + 1, device=places.device)
    if (mask := arguments.get("attention_mask")) is not None:
        longer["attention_mask"] = pad(mask, (0, n), value=1)
    if keeps:
        longer["logits_to_keep"] = n + 1
    return longer
