"""The generation of one answer, step by step: prefill chunks of the prompt, then one token a step."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.documents import Document
from longspan.documents.contents import attached
from longspan.documents.passages import Attended
from longspan.errors import LongspanError, one_line
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.cache import LongspanCache
from longspan.hf.drafted import drafted
from longspan.hf.drafting import DraftedAnswer
from longspan.hf.joined import JoinedCache
from longspan.hf.logits import last_logits
from longspan.serve.answer_text import AnswerText
from longspan.serve.caches import Caches, PrefixCache
from longspan.serve.engine import log
from longspan.serve.events import AttendedPassages, Emit, Finished, PromptProgress
from longspan.serve.prompts import PreviousAnswers
from longspan.serve.sampling import Sampler, Sampling, Token
from longspan.text.ends import Finish, end_tokens

_CAPACITY = 1024  # ids of an answer that are allocated at a time


@dataclass(frozen=True)
class GenerationRequest:
    """A request to generate.

    Attributes:
        ids: the prompt, ``[T]``. max_tokens: length of the answer at most. stop: texts that end it.
        passages: whether to weigh which sentences of ``document`` the answer attends to.
        streamed: whether each part of the answer is sent as soon as it is there.
        digest: of a chat's prompt, by which its answer is remembered; see ``PreviousAnswers``.
        special: whether the answer shows special tokens.
    """

    ids: Tensor
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    document: Document | None = None
    passages: bool = False
    streamed: bool = True
    digest: Any = None
    special: bool = False


class GenerationHost(Protocol):
    """The host of generations."""

    model: PreTrainedModel
    tokenizer: Any
    caches: Caches
    previous_answers: PreviousAnswers
    prefill_chunk: int

    def documents(self) -> Iterable[Document]:
        """The documents that are read."""


class Generation:
    """One answer; see ``engine.Job``.

    Args:
        emit: called with each event, by the engine's thread.

    Attributes:
        joined: its cache and those of the answers whose tokens are computed together with its own; see ``NextTokens``.
    """

    def __init__(self, host: GenerationHost, request: GenerationRequest, emit: Emit) -> None:
        self._host, self._request, self._emit = host, request, emit
        self._last_logits = last_logits(host.model, 1)
        self._prefix: PrefixCache | None = None
        self._prompt_length = len(request.ids)
        self._ids = torch.cat((request.ids, torch.zeros(min(request.max_tokens, _CAPACITY), dtype=torch.int64)))
        self._length = self._prompt_length  # of the prompt and the answer so far
        self._reused = 0  # prompt tokens that a cache had
        self._ends = end_tokens(host.model)
        self._text = AnswerText(
            host.tokenizer, ends=self._ends, most=request.max_tokens, stop=request.stop, streamed=request.streamed,
            special=request.special,
        )  # fmt: skip
        self._sampler = Sampler(host.model, request.sampling, self._prompt_length, request.max_tokens)
        self._finish: Finish | None = None  # of an answer that is whole and is to be weighed yet
        self._submitted = time.perf_counter()
        self._started = 0.0
        self._prefill = self._decode = 0.0  # seconds of computing
        drafting = attached(host.model).drafting
        self._drafted = None if drafting is None else DraftedAnswer(drafting)
        if self._drafted is not None:
            self._drafted.follow(self._prompt_length + request.max_tokens, frozenset(self._ends))
        self.cancelled = False
        self.joined: JoinedCache | None = None
        self._ahead: tuple[Tensor, float] | None = None  # logits of the next token, and the seconds that they took
        self._broken: Exception | None = None

    @property
    def long(self) -> bool:
        return self._prefix is not None and self._length - self._prefix.tokens > self._host.prefill_chunk

    @property
    def next_id(self) -> int | None:
        """The token that its next forward takes in, if the step is of one token; else None."""
        if self._prefix is None or self._finish is not None or self._length - self._prefix.tokens != 1:
            return None
        return int(self._ids[self._length - 1])

    @property
    def cache(self) -> LongspanCache:
        """The cache of the tokens before ``next_id``."""
        assert self._prefix is not None
        if self._drafted is not None:
            self._drafted.settle(ended=True)  # several answers' tokens are computed together, and none are drafted
        return self._prefix.cache

    def take(self, logits: Tensor, seconds: float) -> None:
        """A forward took in ``next_id``: the next step samples from its logits ``[V]``, which took so many seconds."""
        assert self._prefix is not None
        self._prefix.tokens += 1
        self._ahead = logits, seconds

    def go_back(self, error: Exception) -> None:
        """A forward that was to take in ``next_id`` failed: forget what it left in the cache, so that the step does.

        The next step raises the error if the cache cannot go back.
        """
        prefix = self._prefix
        assert prefix is not None
        try:
            tokens = prefix.cache.croppable(prefix.tokens)
            if tokens < max(prefix.mapped, 1, prefix.document.tokens if prefix.document is not None else 0):
                self._broken = error
            else:
                prefix.cache.crop(tokens)
                prefix.tokens = tokens
        except Exception:
            self._broken = error

    @torch.inference_mode()
    def step(self) -> bool:
        began = time.perf_counter()
        if self._finish is not None:
            attended = self._weigh()
            return self._end(self._finish, attended)
        self._started = self._started or began
        token = self._compute()
        seconds = time.perf_counter() - began
        if self._ahead is not None:
            seconds, self._ahead = seconds + self._ahead[1], None
        if self._length == self._prompt_length:
            self._prefill += seconds
        else:
            self._decode += seconds
        return True if token is None else self._append(token)

    def _compute(self) -> Token | None:
        """The next token; None while more of the prompt is to be read."""
        if self._broken is not None:
            raise self._broken
        if self._ahead is not None:
            return self._sampler(self._ids[: self._length], self._ahead[0])
        if self._prefix is None:
            self._prefix = self._host.caches.take(self._request.ids, self._host.documents())
            self._reused = self._prefix.tokens
            if self.long:
                return None  # the rest takes turns with other prefill chunks
        prefix, prefill_chunk = self._prefix, self._host.prefill_chunk
        stop = min(prefix.tokens + prefill_chunk, self._length)
        logits = self._forward(self._ids[prefix.tokens : stop], prefix)
        if stop < self._length:
            # A device computes on while the next job begins; seconds are those of the job that caused them.
            logits[:1].tolist()
            self._emit(PromptProgress(stop, self._length))
            return None
        return self._sampler(self._ids[: self._length], logits)

    def _forward(self, ids: Tensor, prefix: PrefixCache) -> Tensor:
        model = self._host.model
        more = {**self._last_logits, CACHE_ARGUMENT: prefix.cache}
        with self._drafts():
            out = model(input_ids=ids[None].to(model.device), use_cache=True, **more)
        prefix.tokens += len(ids)
        logits: Tensor = out.logits[0, -1]
        return logits

    def _drafts(self) -> AbstractContextManager[None]:
        """A forward in this block may verify drafts of the answer, or be one that did."""
        if self._drafted is None:
            return nullcontext()
        self._drafted.tokens = self._ids[None, : self._length]
        return drafted(attached(self._host.model), self._drafted)

    def _append(self, token: Token) -> bool:
        """Append a token to the answer; returns whether another one follows."""
        if self._length == len(self._ids):
            self._ids = torch.cat((self._ids, torch.zeros_like(self._ids[self._prompt_length :])))
        self._ids[self._length] = token.id
        self._length += 1
        delta, finish = self._text.append(token), self._text.finish
        if delta is not None:
            self._emit(delta)
        if finish is None:
            return True
        self._end_drafts()
        if not self._text.stopped and self._request.digest is not None:
            answer = self._ids[self._prompt_length : self._length - (token.id in self._ends)]
            whole = str(self._host.tokenizer.decode(answer.tolist(), skip_special_tokens=True))
            self._host.previous_answers.remember(self._request.digest, whole, answer.clone())
        if not self._request.passages:
            return self._end(finish, None)
        self._finish = finish  # the next step weighs
        return True

    def _end(self, finish: Finish, attended: Attended | str | None) -> bool:
        end = self._finished(finish, attended)
        self.close()
        self._emit(end)
        return False

    def _weigh(self) -> Attended | str:
        """The attention of the answer to its document, or why it cannot be had.

        It goes on from the answer's own cache if that can go back before the answer: of a long conversation nothing is
        read again.
        """
        document, prompt, prefix, began = self._request.document, self._prompt_length, self._prefix, time.perf_counter()
        if document is None or document not in self._host.documents() or prefix is None:
            return "the document was deleted meanwhile"
        tokens = self._ids[prompt : self._length].tolist()
        try:
            own = document.go_back(prefix.cache, prompt - 1, prefix.mapped)
            return document.attended(self._request.ids, tokens, cache=prefix.cache if own else None)
        except Exception as error:  # the answer itself is whole
            log.error("the passages of an answer could not be computed", exc_info=error)
            self._prefix = None  # whose state is unknown
            return one_line(error) if isinstance(error, LongspanError) else "the server's log has the reason"
        finally:
            self._decode += time.perf_counter() - began

    def _finished(self, finish: Finish, attended: Attended | str | None) -> Finished:
        turns = time.perf_counter() - self._started - self._prefill - self._decode
        return Finished(
            finish, self._prompt_length, self._reused, self._length - self._prompt_length,
            self._started - self._submitted, self._prefill, self._decode, turns,
            None if attended is None else partial(self._passages, attended),
            None if self._drafted is None else self._drafted.drafts,
        )  # fmt: skip

    def _passages(self, attended: Attended | str) -> AttendedPassages:
        """Takes milliseconds a token, so neither the engine's thread nor the event loop calls it."""
        if isinstance(attended, str):
            return AttendedPassages(error=f"the passages could not be computed: {attended}")
        texts = self._text.of_each(self._ids[self._prompt_length : self._length].tolist())
        each = tuple((text, attended.passages(n)) for n, text in enumerate(texts))
        # A stop string is no part of the answer.
        shown = max((n for n, text in enumerate(texts, 1) if text), default=0)
        attended = replace(attended, shown=min(attended.shown, shown))
        return AttendedPassages(attended.passages() or attended.heaviest(), each)

    def _end_drafts(self) -> None:
        if self._drafted is not None:
            self._drafted.end()

    def close(self) -> None:
        """Return the cache for requests with this prefix."""
        self._end_drafts()
        prefix, self._prefix, self.joined = self._prefix, None, None
        # Of a document that was deleted meanwhile nothing is kept.
        if prefix is not None and (prefix.document is None or prefix.document in self._host.documents()):
            self._host.caches.keep(self._ids[: prefix.tokens].clone(), prefix)
        self.cancelled = True

    def fail(self, error: Exception) -> None:
        """Drop the cache, whose state is unknown after an error."""
        self._prefix, self.joined, self.cancelled = None, None, True
        log.error("a request failed", exc_info=error)
        self._emit(error)
