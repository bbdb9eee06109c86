"""Text out of tokens as they come: whole characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"  # what a tokenizer shows of a character whose last bytes are still to come
_LOOK_BACK = 4  # tokens that are decoded again, since how a token reads may depend on the one before


class Text:
    """The text of an answer.

    Args:
        stop: where one of these begins, the text ends.

    Attributes:
        stopped: whether it has ended so.
        length: characters of all tokens so far. shown: those that were handed out.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._tokens: list[int] = []
        self._from, self._known = 0, ""  # tokens from there on read so, as far as they were handed out
        self._pending = ""  # not handed out, as it may be the beginning of a stop string
        self.stopped = False
        self.length = self.shown = 0

    def add(self, token: int) -> str:
        """The text that is certain now, since the last call."""
        self._tokens.append(token)
        now = self._read()
        if now.endswith(_UNFINISHED):
            return ""
        new, self._known = now[len(self._known) :], now
        if len(self._tokens) - self._from > 2 * _LOOK_BACK:
            self._from = len(self._tokens) - _LOOK_BACK
            self._known = self._read()
        return self._certain(new)

    def end(self) -> str:
        """The rest, when no token follows."""
        if self.stopped:
            return ""
        rest = self._certain(self._read()[len(self._known) :])
        left, self._pending = self._pending, ""
        self.shown += len(left)
        return rest + left

    def _read(self) -> str:
        return str(self._tokenizer.decode(self._tokens[self._from :], skip_special_tokens=True))

    def _certain(self, new: str) -> str:
        self.length += len(new)
        text = self._pending + new
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped, self._pending = True, ""
            self.shown += min(found)
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - held :]
        self.shown += len(text) - held
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """The most characters at the end of a text that a stop string begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
