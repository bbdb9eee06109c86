"""Incremental detokenization: the text of each token of an answer, in whole characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_INCOMPLETE = "\ufffd"  # the decoding of a character whose last bytes are missing
_LOOK_BACK = 4  # tokens that are decoded again, since the text of a token may depend on the one before


class IncrementalDetokenizer:
    """Decodes an answer token by token: the texts of its tokens, one after the other, are the answer's text.

    A token by itself says less: many tokenizers leave out the space before the first of some tokens, and a character
    may have several tokens. It comes with the last of these.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # the last tokens, which decode to this text
        self._window_text = ""
        self._shown = 0  # tokens of the window whose text was returned

    def add(self, token: int) -> str:
        """The text of this token, empty while a character is incomplete and for special tokens."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(_INCOMPLETE):
            return ""
        new, self._window_text, self._shown = self._new(text, self._window), text, len(self._window)
        if len(self._window) > 2 * _LOOK_BACK:
            self._shorten()
        return new

    def alternatives(self, tokens: Sequence[int]) -> list[str]:
        """The text that each of these would have as the next token; of special ones their names."""
        special = set(self._tokenizer.all_special_ids) if tokens else set()
        return [str(self._tokenizer.decode([t])) if t in special else self._next(t) for t in tokens]

    def end(self) -> str:
        """The rest of the text, when no token follows: of a character whose last bytes are missing."""
        return self._new(self._decode(self._window), self._window)

    def _new(self, text: str, window: list[int]) -> str:
        """The part of ``text``, of the window or of one with another token, that was not returned yet."""
        if text.startswith(self._window_text):
            return text[len(self._window_text) :]
        return self._decode(window[self._shown :])  # the bytes before are decoded with those of half a character

    def _shorten(self) -> None:
        """Leave out the first tokens. Those that are left decode as before only if they do not begin in a character."""
        for count in range(_LOOK_BACK, 2 * _LOOK_BACK):
            window = self._window[-count:]
            text = self._decode(window)
            if self._window_text.endswith(text):
                self._window, self._window_text, self._shown = window, text, count
                return

    def _next(self, token: int) -> str:
        window = [*self._window, token]
        text = self._decode(window)
        return "" if text.endswith(_INCOMPLETE) else self._new(text, window)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


class TokenStreamer:
    """A streamer for ``generate`` that hands on the text of each token of an answer, whose whole is the answer's text.

    That of transformers decodes each line by itself, and many tokenizers leave out the space that a text begins with.
    """

    def __init__(self, tokenizer: Any, tell: Callable[[str], None]) -> None:
        self._detokenizer, self._tell = IncrementalDetokenizer(tokenizer), tell
        self._asked = False  # the prompt is handed over first

    def put(self, value: Any) -> None:
        for token in value.flatten().tolist() if self._asked else ():
            self._told(self._detokenizer.add(token))
        self._asked = True

    def end(self) -> None:
        self._told(self._detokenizer.end())

    def _told(self, text: str) -> None:
        if text:
            self._tell(text)
