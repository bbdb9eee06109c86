"""What ends an answer: one of the model's end tokens, or a stop string, of which nothing is ever shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

Finish = Literal["stop", "length"]


def end_tokens(model: Any, options: Mapping[str, Any] | None = None) -> frozenset[int]:
    """The tokens that end an answer of ``model``: those of these options of ``generate``, or of its generation config.

    Each ``eos_token_id`` is one token, several or none.
    """
    options = options or {}
    config = options.get("generation_config") or getattr(model, "generation_config", None)
    ends = options.get("eos_token_id", getattr(config, "eos_token_id", None))
    return frozenset() if ends is None else frozenset([ends] if isinstance(ends, int) else ends)


def before_end(tokens: Iterable[int], ends: frozenset[int]) -> list[int]:
    """The tokens of an answer before the first that ends it."""
    return list(takewhile(lambda token: token not in ends, tokens))


def finish_of(*, ended: bool, stopped: bool, full: bool) -> Finish | None:
    """What ended an answer, in the words of OpenAI's API; None while another token follows.

    Args:
        ended: its last token is one of ``end_tokens``. stopped: a stop string is in it. full: it has its most tokens.
    """
    return "stop" if ended or stopped else "length" if full else None


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
