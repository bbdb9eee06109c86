"""Stop strings: a text ends where one begins, and nothing of one is ever shown."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts the text of an answer as it comes.

    Attributes:
        stopped: whether a stop string has ended the text. shown: characters that were returned.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held_back = ""  # may be the beginning of a stop string
        self.stopped, self.shown = False, 0

    def cut(self, new: str) -> str:
        """The text to show once ``new`` has come, without an end that may begin a stop string."""
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

    def end(self) -> str:
        """The held-back text, when no text follows."""
        left, self._held_back = self._held_back, ""
        self.shown += len(left)
        return left


def _overlap(text: str, stop: str) -> int:
    """The most characters at the end of a text that a stop string begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
