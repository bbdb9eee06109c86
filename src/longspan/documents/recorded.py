"""Record what the heads choose while one answer is written, by this thread alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from transformers import PreTrainedModel

from longspan.attend import Choice
from longspan.errors import DocumentError
from longspan.hf.hooks import Attachment
from longspan.recording import record

_turn = Lock()  # one recording at a time


@dataclass
class Recorded:
    """The choices for each token of an answer.

    Attributes:
        steps: the choices of the forward that gave each token.
    """

    attachment: Attachment
    choices: list[Choice] = field(default_factory=list)
    calls: list[int | None] = field(default_factory=list)

    def token(self) -> None:
        """A token was written: note which forward gave it."""
        observer = self.attachment.attender.observer
        self.calls.append(None if observer is None else observer.call)

    @property
    def steps(self) -> list[list[Choice]]:
        by_call: dict[int | None, list[Choice]] = {call: [] for call in self.calls}
        for choice in self.choices:
            if choice.call in by_call:
                by_call[choice.call].append(choice)
        return [by_call[call] for call in self.calls]


@contextmanager
def recorded(model: PreTrainedModel, attachment: Attachment) -> Iterator[Recorded]:
    """Record what this thread runs in this block, which computes the same to the bit. Blocks of other threads wait.

    Raises:
        DocumentError: the method chooses nothing.
    """
    method = attachment.attender.method
    if not method.selects:
        raise DocumentError(
            f"{method.name} keeps keys by their index and chooses none, so there are no passages to show; read the "
            "text with longheads, esa, infllm, or lm-infinite with middle_top_k"
        )
    recording = Recorded(attachment)
    with _turn, record(model, scores=False, threads="this") as trace:
        yield recording
        recording.choices = list(trace.choices)
