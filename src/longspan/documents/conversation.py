"""Questions about a document that follow one another."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longspan.documents.asking import Answer, Stream
from longspan.documents.document import Document, check_question
from longspan.documents.layout import encode, encode_text
from longspan.documents.passages import Passage
from longspan.documents.writing import stops_of
from longspan.errors import DocumentError
from longspan.hf.cache import LongspanCache
from longspan.text.ends import before_end, end_tokens

_PLAIN = {"skip_special_tokens": True}


@dataclass(frozen=True)
class Turn:
    """A question and its answer, as ids of what stands around them and of themselves."""

    question: str
    answer: Answer
    asked: Tensor
    answered: Tensor


class Conversation:
    """Questions and answers about a document, each with those before in view.

    Attributes:
        turns: in their order.
    """

    def __init__(self, document: Document) -> None:
        self.document, self.turns = document, list[Turn]()
        self._cache: LongspanCache | None = None  # of the turns so far
        self._cached = torch.empty(0, dtype=torch.int64)  # the ids of its tokens

    def say(self, question: str, max_new_tokens: int = 200, *, stream: Stream | None = None, **options: Any) -> Answer:
        """Answer a question; see ``Document.ask``."""
        check_question(question)
        layout = self.document.layout
        before = layout.turn if self.turns else layout.joint
        asked = encode(self.document.tokenizer, f"{before}{question}{layout.end}")
        ids = torch.cat((self.ids(), asked))
        cache = self._cache_of(ids)
        self._cache = None  # an answer broken off leaves it in no state to go on from
        answer = self.document.go_on(ids, max_new_tokens, cache=cache, stream=stream, **options)
        self._cache = cache
        self._cached = torch.cat((ids, torch.tensor(answer.tokens)))[: cache.get_seq_length()]
        # The layout writes itself what ends an answer.
        answered = torch.tensor(before_end(answer.tokens, end_tokens(self.document.model, options)), dtype=torch.int64)
        tokenizer = self.document.tokenizer
        stops = stops_of(options, self.document.model.generation_config)
        if stops and answer.text != tokenizer.decode(answered.tolist(), **_PLAIN):
            answered, _ = encode_text(tokenizer, answer.text)  # a stop string is no part of it
        self.turns.append(Turn(question, answer, asked, answered))
        return answer

    def ids(self) -> Tensor:
        """All tokens so far, ``[T]`` int64, the document's first."""
        return torch.cat([self.document.contents.ids, *(x for turn in self.turns for x in (turn.asked, turn.answered))])

    def undo(self) -> Turn:
        """Take the last question and its answer back.

        Raises:
            DocumentError: nothing was asked yet.
        """
        self._last()
        self._cache = None
        return self.turns.pop()

    def passages(self) -> tuple[Passage, ...]:
        """The passages of the last answer; see ``Document.ask``.

        Raises:
            DocumentError: nothing was asked yet.
        """
        last, ids = self._last(), self.ids()
        before = ids[: len(ids) - len(last.answered)]
        return self.document.attended(before, last.answer.tokens, last.answer.text).passages()

    def save(self, path: str | os.PathLike[str]) -> Document:
        """Write document and conversation as one document, to ask further; the document stays as it is."""
        branch = self.document.fork()
        if self.turns:
            branch.append_tokens(self.ids()[self.document.tokens :], source="conversation")
            branch.layout = replace(branch.layout, joint=branch.layout.turn)  # text after an answer follows there
        branch.save(path)
        return branch

    def _cache_of(self, ids: Tensor) -> LongspanCache:
        """The cache of the turns before, if its tokens are the first of ``ids`` and not all; else the document's."""
        known = len(self._cached)
        if self._cache is not None and known < len(ids) and torch.equal(ids[:known], self._cached):
            return self._cache
        return self.document.cache()

    def _last(self) -> Turn:
        if not self.turns:
            raise DocumentError("no question was asked yet")
        return self.turns[-1]
