"""Incremental detokenization: the text of each token of an answer, in whole characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from longspan.text.ends import StopStrings

_DAMAGED = "\ufffd"  # the decoding of bytes that are no character, or not yet
_HELD = 3  # tokens whose text may be held back: the fourth byte completes a character, and a token has one at least
_CONTEXT = 4  # tokens that are decoded again, since the text of a token may depend on the one before


class _Window(NamedTuple):
    """The last tokens of an answer, of which the first ``shown`` have the text ``told``."""

    tokens: list[int]
    text: str  # of all of them
    told: str
    shown: int


class IncrementalDetokenizer:
    """Decodes an answer token by token: the texts of its tokens, one after the other, are the answer's text.

    A token by itself says less: many tokenizers leave out the space before the first of some tokens, and a character
    may have several tokens. It comes with the last of these. Bytes that are no character come as U+FFFD, at most three
    tokens late. Tokenizers with a token for each byte make U+FFFD of all bytes beside a damaged one; here whole
    characters among them stay what they are, since they may have been shown before.

    Args:
        special: whether special tokens have their names as texts; else they have none.
    """

    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._window = _Window([], "", "", 0)

    def add(self, token: int) -> str:
        """The text that comes with this token, empty while a character is incomplete and for special tokens."""
        new, self._window = self._after(token)
        if len(self._window.tokens) > 2 * (_CONTEXT + _HELD):
            self._shorten()
        return new

    def alternatives(self, tokens: Sequence[int]) -> list[str]:
        """The text that each of these would have as the next token; of special ones their names."""
        special = set(self._tokenizer.all_special_ids) if tokens else set()
        return [str(self._tokenizer.decode([t])) if t in special else self._after(t)[0] for t in tokens]

    def end(self) -> str:
        """The rest of the text, when no token follows: of a character whose last bytes are missing."""
        return self._new(self._window, self._window.tokens, self._window.text)

    def _after(self, token: int) -> tuple[str, _Window]:
        """The text that comes with a token, and the window with it."""
        window, tokens = self._window, [*self._window.tokens, token]
        text = self._decode(tokens)
        if text == window.text and self._is_special(token):
            return "", window  # it may stand within a character
        new = self._new(window, tokens, text)
        if not new.endswith(_DAMAGED):
            return new, _Window(tokens, text, text, len(tokens))
        held = tokens[window.shown :]
        for begin in range(len(held)):
            end = self._decode(held[begin:])
            if end and not end.endswith(_DAMAGED):  # whole characters, which damaged bytes before them spoil
                return self._decode(held[:begin]) + end, _Window(held[begin:], end, end, len(held) - begin)
        if (whole := new.rstrip(_DAMAGED)) and text.startswith(window.told):  # its last token begins another character
            told = window.told + whole
            last = next(n for n in range(len(tokens)) if self._decode(tokens[: n + 1]).startswith(told))
            return whole, _Window(tokens, text, told, last)
        if len(held) <= _HELD:
            return "", window._replace(tokens=tokens, text=text)
        if not text.startswith(window.told):
            tokens, text, window = held, new, _Window([], "", "", 0)
        # No character has room for the first of these tokens and all others.
        first = tokens[: window.shown + 1]
        new = new[: len(self._new(window, first, self._decode(first)))]
        return new, _Window(tokens, text, window.told + new, window.shown + 1)

    def _new(self, window: _Window, tokens: list[int], text: str) -> str:
        """The part of ``text``, which these tokens have, that was not returned yet."""
        if text.startswith(window.told):
            return text[len(window.told) :]
        return self._decode(tokens[window.shown :])  # the bytes before are decoded with those of half a character

    def _shorten(self) -> None:
        """Leave out the first tokens. If a character begins in them, what is left of it is text that was shown."""
        window = self._window
        held = len(window.tokens) - window.shown
        tokens = window.tokens[-_CONTEXT - held :]
        text = self._decode(tokens)
        rest = self._new(window, window.tokens, window.text)
        self._window = _Window(tokens, text, text.removesuffix(rest), _CONTEXT)

    def _is_special(self, token: int) -> bool:
        return not self._decode([token]) and bool(self._tokenizer.decode([token]))

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=not self._special))


def tokens_of(tokenizer: Any, tokens: Sequence[int], characters: int) -> int:
    """How many of the first tokens of an answer its first ``characters`` come from."""
    told, text = IncrementalDetokenizer(tokenizer), 0
    for number, token in enumerate(tokens):
        if text >= characters:
            return number
        text += len(told.add(token))
    return len(tokens)


class TokenStreamer:
    """A streamer for ``generate`` that hands on the text of each token of an answer, whose whole is the answer's text.

    That of transformers decodes each line by itself, and many tokenizers leave out the space that a text begins with.

    Args:
        stop: texts that end the answer, of which nothing is handed on, nor of what follows.
    """

    def __init__(self, tokenizer: Any, tell: Callable[[str], None], stop: Sequence[str] = ()) -> None:
        self._detokenizer, self._tell, self._stops = IncrementalDetokenizer(tokenizer), tell, StopStrings(stop)
        self._asked = False  # the prompt is handed over first

    def put(self, value: Any) -> None:
        for token in value.flatten().tolist() if self._asked else ():
            self._told(self._detokenizer.add(token))
        self._asked = True

    def end(self) -> None:
        self._told(self._detokenizer.end())
        if not self.stopped and (left := self._stops.end()):
            self._tell(left)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stops.stopped

    def _told(self, text: str) -> None:
        if not self.stopped and (shown := self._stops.cut(text)):
            self._tell(shown)
