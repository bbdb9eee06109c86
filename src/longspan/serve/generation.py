"""One answer, step by step: the prompt is read in pieces, then comes token by token."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.documents import Document, Passage
from longspan.documents.document import GRAIN
from longspan.documents.passages import Range, looked_at, ranked
from longspan.documents.recorded import recorded
from longspan.serve.caches import Caches, Taken
from longspan.serve.detokenize import Text
from longspan.serve.engine import log
from longspan.serve.prompts import Said
from longspan.serve.sampling import Sampler, Sampling, Token, ends_of

Finish = Literal["stop", "length"]
_ROOM = 1024  # ids of an answer that there is room for at once


@dataclass(frozen=True)
class Wanted:
    """What a request asks for.

    Attributes:
        ids: the prompt, ``[T]``. max_tokens: length of the answer at most. stop: texts that end it.
        passages: whether to record what the heads choose of ``document``.
    """

    ids: Tensor
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    document: Document | None = None
    passages: bool = False


@dataclass(frozen=True)
class Part:
    """A part of an answer: its text, and the tokens since the part before."""

    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Looked:
    """What the heads looked at: in all, of how many choices, and for each token by its text."""

    votes: int
    answer: tuple[Passage, ...]
    tokens: tuple[tuple[str, tuple[Passage, ...]], ...]


@dataclass(frozen=True)
class End:
    """An answer is there.

    Attributes:
        prompt, cached, completion: tokens; ``cached`` are those of the prompt that were not read again.
        queued: seconds until its first step.
        prefill, decode: seconds of computing, of the prompt to the first token and of the tokens after it.
        turns: seconds between its steps, in which other requests and texts had their turns.
        looked: computes what the heads looked at; None where that was not asked for.
    """

    finish: Finish
    prompt: int
    cached: int
    completion: int
    queued: float
    prefill: float
    decode: float
    turns: float
    looked: Callable[[], Looked | None]


Event = Part | End | Exception
Emit = Callable[[Event], None]


class Host(Protocol):
    """What a server's answers share."""

    model: PreTrainedModel
    tokenizer: Any
    caches: Caches
    said: Said
    piece: int

    def documents(self) -> Iterable[Document]:
        """Those that can be asked."""


class Generation:
    """One answer; see ``engine.Job``.

    Args:
        emit: told what there is, by the engine's thread.
    """

    def __init__(self, host: Host, wanted: Wanted, emit: Emit) -> None:
        self._host, self._wanted, self._emit = host, wanted, emit
        self._few = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(host.model.forward).parameters else {}
        )
        self._taken: Taken | None = None
        self._prompt = len(wanted.ids)
        self._ids = torch.cat((wanted.ids, torch.zeros(min(wanted.max_tokens, _ROOM), dtype=torch.int64)))
        self._known, self._cached = self._prompt, 0  # ids that are known, and prompt tokens that were not read again
        self._text = Text(host.tokenizer, wanted.stop)
        self._untold = list[tuple[int, Token]]()  # each with where its text begins in the answer
        self._ends, self._sampler = ends_of(host.model), Sampler(host.model, wanted.sampling, self._prompt)
        self._counts, self._votes = list[Counter[Range]](), 0
        self._submitted = time.perf_counter()
        self._began = 0.0
        self._prefill = self._decode = 0.0  # seconds of computing
        self.cancelled = False

    @property
    def long(self) -> bool:
        return self._taken is not None and self._known - self._taken.tokens > self._host.piece

    @torch.inference_mode()
    def step(self) -> bool:
        began = time.perf_counter()
        self._began = self._began or began
        token = self._compute()
        seconds = time.perf_counter() - began
        if self._known == self._prompt:
            self._prefill += seconds
        else:
            self._decode += seconds
        return True if token is None else self._written(token)

    def _compute(self) -> Token | None:
        """The next token; None while more of the prompt is to be read."""
        if self._taken is None:
            self._taken = self._host.caches.take(self._wanted.ids, self._host.documents())
            self._cached = self._taken.tokens
            if self.long:
                return None  # what is left takes turns with other pieces
        taken, piece = self._taken, self._host.piece
        stop = min(taken.tokens + piece, self._known)
        with ExitStack() as stack:
            seen = None
            if self._wanted.passages and stop == self._known:
                model = self._host.model
                assert self._wanted.document is not None
                seen = stack.enter_context(recorded(model, self._wanted.document.attachment()))
            logits = self._forward(self._ids[taken.tokens : stop], taken)
        if stop < self._known:
            # A device computes on while the next job begins; seconds are those of the job that caused them.
            logits[:1].tolist()
            return None
        if seen is not None:
            counts, votes = looked_at(seen.choices, GRAIN)
            self._counts.append(counts)
            self._votes += votes
        return self._sampler(self._ids[: self._known], logits)

    def _forward(self, ids: Tensor, taken: Taken) -> Tensor:
        model = self._host.model
        out = model(input_ids=ids[None].to(model.device), past_key_values=taken.cache, use_cache=True, **self._few)
        taken.tokens += len(ids)
        logits: Tensor = out.logits[0, -1]
        return logits

    def _written(self, token: Token) -> bool:
        """Take a token in; whether another one is to come."""
        if self._known == len(self._ids):
            self._ids = torch.cat((self._ids, torch.zeros_like(self._ids[self._prompt :])))
        self._ids[self._known] = token.id
        self._known += 1
        ended = token.id in self._ends
        if not ended:  # it is not shown
            self._untold.append((self._text.length, token))
        text = "" if ended else self._text.add(token.id)
        finish: Finish | None = "stop" if ended or self._text.stopped else None
        if finish is None and self._known == self._prompt + self._wanted.max_tokens:
            finish = "length"
        if finish is not None:
            text += self._text.end()
            finish = "stop" if self._text.stopped else finish
        if text or finish is not None:
            # A token comes with the first of its text, and not at all where a stop string cuts all of that off.
            rest = finish is not None and not self._text.stopped  # such as a token without text at the end
            shown = [token for begin, token in self._untold if rest or begin < self._text.shown]
            self._untold = self._untold[len(shown) :]
            self._emit(Part(text, tuple(shown)))
        if finish is None:
            return True
        if not self._text.stopped:
            answer = self._ids[self._prompt : self._known - ended]
            whole = str(self._host.tokenizer.decode(answer.tolist(), skip_special_tokens=True))
            self._host.said.remember(self._wanted.ids, whole, answer.clone())
        end = self._end(finish)
        self.close()
        self._emit(end)
        return False

    def _end(self, finish: Finish) -> End:
        turns = time.perf_counter() - self._began - self._prefill - self._decode
        return End(
            finish, self._prompt, self._cached, self._known - self._prompt,
            self._began - self._submitted, self._prefill, self._decode, turns, self._looked,
        )  # fmt: skip

    def _looked(self) -> Looked | None:
        """Takes milliseconds a token, so that no thread does it that others wait for."""
        document = self._wanted.document
        if not self._wanted.passages or document is None:
            return None
        tokens = self._ids[self._prompt : self._known].tolist()
        each, text = self._votes // max(len(self._counts), 1), Text(self._host.tokenizer, ())
        texts = ["" if token in self._ends else text.add(token) for token in tokens]
        texts[-1] += text.end()
        shown = tuple(
            (written, ranked(counts, each, document.contents))
            for written, counts in zip(texts, self._counts, strict=True)
        )
        return Looked(self._votes, ranked(sum(self._counts, Counter()), self._votes, document.contents), shown)

    def close(self) -> None:
        """Leave the cache to those that go on from here."""
        taken, self._taken = self._taken, None
        # Of a document that was deleted meanwhile nothing is kept.
        if taken is not None and (taken.document is None or taken.document in self._host.documents()):
            self._host.caches.keep(self._ids[: taken.tokens].clone(), taken)
        self.cancelled = True

    def fail(self, error: Exception) -> None:
        """The cache is in no state to go on from; it goes."""
        self._taken, self.cancelled = None, True
        log.error("a request failed", exc_info=error)
        self._emit(error)
