"""Incremental detokenization: whole characters only, and no part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_INCOMPLETE = "\ufffd"  # the decoding of a character whose last bytes are missing
_LOOK_BACK = 4  # tokens that are decoded again, since the text of a token may depend on the one before


class IncrementalDetokenizer:
    """Decodes an answer token by token.

    Args:
        stop: where one of these begins, the text ends.

    Attributes:
        stopped: whether a stop string has ended the text.
        length: characters of all tokens so far. shown: characters that were returned.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._tokens: list[int] = []
        self._window_start, self._window_text = 0, ""  # the tokens from there on decode to this text
        self._held_back = ""  # may be the beginning of a stop string
        self.stopped = False
        self.length = self.shown = 0

    def add(self, token: int) -> str:
        """The new text after this token, empty while a character is incomplete or may begin a stop string."""
        self._tokens.append(token)
        text = self._decode_window()
        if text.endswith(_INCOMPLETE):
            return ""
        new, self._window_text = text[len(self._window_text) :], text
        if len(self._tokens) - self._window_start > 2 * _LOOK_BACK:
            self._window_start = len(self._tokens) - _LOOK_BACK
            self._window_text = self._decode_window()
        return self._cut_stops(new)

    def end(self) -> str:
        """The rest of the text, when no token follows."""
        if self.stopped:
            return ""
        rest = self._cut_stops(self._decode_window()[len(self._window_text) :])
        left, self._held_back = self._held_back, ""
        self.shown += len(left)
        return rest + left

    def _decode_window(self) -> str:
        return str(self._tokenizer.decode(self._tokens[self._window_start :], skip_special_tokens=True))

    def _cut_stops(self, new: str) -> str:
        self.length += len(new)
        text = self._held_back + new
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped, self._held_back = True, ""
            self.shown += min(found)
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held_back = text[len(text) - held :]
        self.shown += len(text) - held
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """The most characters at the end of a text that a stop string begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
