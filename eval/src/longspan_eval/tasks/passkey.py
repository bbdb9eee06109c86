"""The passkey task as ``longspan eval`` runs it, over the noise of its paper and over prose; and with scored text.

See ``longspan_eval.passkey``, which can do more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from longspan_eval import passkey
from longspan_eval.filler import FillerName
from longspan_eval.passkey import number_complete
from longspan_eval.task import Example, Record, Task
from longspan_eval.tasks.fragments import check_asked


@dataclass(frozen=True)
class Passkey:
    """Five digits in a text; prompt and answer take ``length`` tokens.

    Attributes:
        name: the task's.
        filler: what they are hidden in.
        targets: tokens at the end of the text whose loss is taken.
    """

    name: str
    filler: FillerName
    targets: int = 0

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=True)
        return passkey.build(
            tokenizer,
            length=length,
            seed=seed,
            depth=depth,
            filler=self.filler,
            answer_room=passkey.ANSWER_ROOM,
            targets=self.targets,
        )


def _task(name: str, filler: FillerName, summary: str) -> Task:
    return Task(
        name=name,
        version=passkey.VERSION,
        paper="Mohtashami & Jaggi, 2023, arXiv 2305.16300",
        summary=summary,
        new_tokens=passkey.ANSWER_ROOM,
        build=Passkey(name, filler),
        score=passkey.score,
        at_depths=True,
        until=number_complete,
    )


PASSKEY = _task(passkey.NAME, "noise", "five digits hidden in noise, asked for at the end")
PASSKEY_PROSE = _task(f"{passkey.NAME}-prose", "prose", "five digits hidden in prose, asked for at the end")
PASSKEYS = (PASSKEY, PASSKEY_PROSE)


def scored_passkey(filler: FillerName, targets: int) -> Task:
    """The passkey task over a filler, with the loss of the last ``targets`` tokens of the text taken."""
    task = _task(passkey.NAME, filler, f"five digits hidden in {filler}, and the loss of the end of the text")
    return replace(task, build=Passkey(passkey.NAME, filler, targets), filler=filler, targets=targets)
