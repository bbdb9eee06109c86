"""The passkey task over the sentences of its paper; see ``longspan.evaluation.passkey``."""

from __future__ import annotations

from typing import Any

from longspan.evaluation import passkey
from longspan.evaluation.generate import number_complete
from longspan.evaluation.task import Example, Record, Task


def build(
    tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """Five digits in noise; prompt and answer take ``length`` tokens."""
    return passkey.build(tokenizer, length=length, seed=seed, depth=depth, answer_room=passkey.ANSWER_ROOM)


PASSKEY = Task(
    name=passkey.NAME,
    version=passkey.VERSION,
    paper="Mohtashami & Jaggi, 2023, arXiv 2305.16300",
    summary="five digits hidden in noise, asked for at the end",
    new_tokens=passkey.ANSWER_ROOM,
    build=build,
    score=passkey.score,
    at_depths=True,
    until=number_complete,
)
