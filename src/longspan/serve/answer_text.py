"""The text of an answer as its tokens come, up to what ends it: an end token, a stop string, or its length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from longspan.serve.events import Delta, ShownToken
from longspan.serve.sampling import Token
from longspan.text.detokenize import IncrementalDetokenizer
from longspan.text.ends import Finish, StopStrings, finish_of

_WRITTEN_AT_ONCE = 32  # tokens of an answer that is not streamed; of more, other requests would wait for the text


class AnswerText:
    """The text of one answer.

    Args:
        ends: tokens that end it, which are not shown. most: tokens at most. stop: texts that end it.
        streamed: whether each part of it is sent as soon as it is there.
        special: whether special tokens that do not end it are shown.

    Attributes:
        finish: what ended it; None while another token follows.
    """

    def __init__(
        self, tokenizer: Any, *, ends: frozenset[int], most: int, stop: Sequence[str] = (), streamed: bool = True,
        special: bool = False,
    ) -> None:  # fmt: skip
        self._tokenizer, self._ends, self._most = tokenizer, ends, most
        self._detokenizer, self._stops = IncrementalDetokenizer(tokenizer, special=special), StopStrings(stop)
        self._defers = not streamed and not stop  # a stop string is looked for in every token's text
        self._tokens = self._characters = 0  # so far, those among them that are not shown yet
        self._unwritten, self._unsent = list[Token](), list[ShownToken]()
        self.finish: Finish | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended it."""
        return self._stops.stopped

    def append(self, token: Token) -> Delta | None:
        """Append a token; returns the part of the text to send now, if there is one."""
        self._tokens += 1
        ended, full = token.id in self._ends, self._tokens == self._most
        if not ended:
            self._unwritten.append(token)
        # Of many tokens at once it takes a fraction of the time: a forward drives it out of the processor's caches.
        if self._defers and not ended and not full and len(self._unwritten) < _WRITTEN_AT_ONCE:
            return None
        text = "".join([self._write(one) for one in self._unwritten])
        self._unwritten.clear()
        self.finish = finish_of(ended=ended, stopped=self.stopped, full=full)
        if self.finish is not None and not self.stopped:
            text += self._write_rest()
            self.finish = "stop" if self.stopped else self.finish
        return Delta(text, self._sendable()) if text or self.finish is not None else None

    def of_each(self, tokens: Sequence[int]) -> list[str]:
        """The texts of all its tokens, as far as they are shown; it takes milliseconds a token."""
        told = IncrementalDetokenizer(self._tokenizer)
        texts = ["" if token in self._ends else told.add(token) for token in tokens]
        texts[-1] += told.end()
        if not self.stopped:
            return texts
        ends = accumulate(map(len, texts))
        return [one[: max(self._stops.shown - end + len(one), 0)] for one, end in zip(texts, ends, strict=True)]

    def _write(self, token: Token) -> str:
        """Put the text of a token to the answer; returns what of the answer can be shown now."""
        others = self._detokenizer.alternatives([id for id, _ in token.likeliest])
        new = self._detokenizer.add(token.id)
        likeliest = tuple(zip(others, (logprob for _, logprob in token.likeliest), strict=True))
        self._unsent.append(ShownToken(new, self._characters, token.logprob, likeliest))
        self._characters += len(new)
        return self._stops.cut(new)

    def _write_rest(self) -> str:
        """The same with what is left when no token follows."""
        if rest := self._detokenizer.end():  # of the last token, which is not sent as long as its text is incomplete
            self._unsent[-1] = replace(self._unsent[-1], text=self._unsent[-1].text + rest)
        shown = self._stops.cut(rest)
        return shown if self.stopped else shown + self._stops.end()

    def _sendable(self) -> tuple[ShownToken, ...]:
        """The tokens whose text is shown: all of it, or at the end what a stop string leaves of it."""
        shown = self._stops.shown
        if self.finish is None:
            tokens = [one for one in self._unsent if one.begin < shown and one.begin + len(one.text) <= shown]
            if len(tokens) == len(self._unsent) and self._detokenizer.end():
                tokens = tokens[:-1]  # the last one has the rest, if the answer ends here
        elif self.stopped:
            tokens = [replace(one, text=one.text[: shown - one.begin]) for one in self._unsent if one.begin < shown]
        else:  # one without text at the end is among them
            tokens = self._unsent
        self._unsent = self._unsent[len(tokens) :]
        return tuple(tokens)
