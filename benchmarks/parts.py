"""Where the time of a forward goes: seconds by part of longspan, each without the parts that it calls.

The parts are functions that are replaced, for as long as it lasts, by ones that look at the clock. What is in none of
them is the model's own. What the looking costs by itself is measured first and taken off.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from longspan.attend import Attender, choosing
from longspan.attend.steps import general
from longspan.hf import hooks, interface
from longspan.hf.cache import LongspanCache, StoreLayer
from longspan.index import BlockIndex, ChunkIndex, TokenIndex
from longspan.kernels.decode import DecodeKernel
from longspan.rope import Rope
from longspan.selection import tokens
from longspan.store import KVStore

OVERHEAD = ("hooks", "masks", "store")  # what there would not be if longspan were part of the model
PARTS: dict[str, list[tuple[Any, str]]] = {
    "hooks": [(hooks.Attachment, name) for name in ("begin", "begin_layer", "attend", "end")],
    "masks": [(interface, "_make_mask"), (interface, "left_padding")],
    "store": [
        *(
            (KVStore, name)
            for name in ("append", "keys", "values", "allocated", "reserve", "reserve_one", "commit_one")
        ),
        *((StoreLayer, name) for name in ("update", "get_seq_length", "get_mask_sizes")),
        (LongspanCache, "accept"),
        (hooks.Attachment, "new_cache"),
    ],
    "index": [
        *((kind, "extend") for kind in (ChunkIndex, TokenIndex, BlockIndex)),
        *((kind, name) for kind in (ChunkIndex, TokenIndex) for name in ("reserve_one", "commit_one")),
    ],
    "rotation": [(general.GeneralStep, "_rotated"), (Rope, "pair")],
    "choosing": [(choosing.Chooser, "add")],
    # A single token is stored, rotated, scored and chosen for in its kernel.
    "kernels": [
        *((general, "banded"), (choosing, "gather_into"), (tokens, "gather_into")),
        *((DecodeKernel, name) for name in ("__init__", "takes", "__call__")),
    ],
    "attention, rest": [(Attender, "run")],
}
MODEL = "the model's own"


@dataclass(frozen=True)
class Step:
    """One forward.

    Attributes:
        tokens: new ones.
        seconds: by the clock for the whole.
        spent: seconds by part by the clock for parts, ``MODEL`` for the rest.
    """

    tokens: int
    seconds: float
    spent: dict[str, float]


class Parts:
    """Looks at the clock around every part, and around the forwards of one model, while it is entered.

    A model must be extended after that, since ``extend`` hands some of the functions on.

    Args:
        whole: the clock for a forward. One of the processor leaves out what other programs had, and takes too long to
            look at for the parts.
        now: the clock for the parts.

    Attributes:
        steps: each forward that was seen.
    """

    def __init__(self, whole: Callable[[], float], now: Callable[[], float] = time.perf_counter) -> None:
        self.steps: list[Step] = []
        self._whole, self._now = whole, now
        self._spent: dict[str, float] = {}
        self._open: list[float] = []  # for each part that runs, seconds of the parts that it called
        self._undo: list[tuple[Any, str, Any]] = []
        self._inside = self._outside = 0.0  # seconds that looking adds to a part, and to the part that called it
        self._inside, self._outside = self._cost()

    def __enter__(self) -> Parts:
        for part, functions in PARTS.items():
            for owner, name in functions:
                self._replace(owner, name, part)
        return self

    def __exit__(self, *error: object) -> None:
        for owner, name, own in reversed(self._undo):
            setattr(owner, name, own)
        self._undo.clear()

    def watch(self, model: PreTrainedModel) -> None:
        """Count the forwards of a model."""
        forward = model.forward

        @functools.wraps(forward)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._spent = dict.fromkeys((*PARTS, MODEL), 0.0)
            begun = self._whole()
            out = self._timed(MODEL, forward, args, kwargs)
            ids = args[0] if args else kwargs["input_ids"]
            self.steps.append(Step(ids.shape[1], self._whole() - begun, self._spent))
            return out

        model.forward = counted  # type: ignore[method-assign]

    def _replace(self, owner: Any, name: str, part: str) -> None:
        own = vars(owner)[name]
        self._undo.append((owner, name, own))
        if isinstance(own, property):
            setattr(owner, name, property(self._around(part, own.fget)))
        else:
            setattr(owner, name, self._around(part, own))

    def _around(self, part: str, function: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._timed(part, function, args, kwargs)

        return run

    def _timed(self, part: str, function: Any, args: Any, kwargs: Any) -> Any:
        self._open.append(0.0)
        begun = self._now()
        try:
            return function(*args, **kwargs)
        finally:
            whole = self._now() - begun
            inner = self._open.pop()
            self._spent[part] = self._spent.get(part, 0.0) + whole - inner - self._inside
            if self._open:
                self._open[-1] += whole + self._outside

    def _cost(self) -> tuple[float, float]:
        """The least of many tries, so that what is left counts against longspan rather than for it."""
        run, calls = self._around("", lambda: None), 500
        inside, both = [], []
        for _ in range(50):
            self._spent = {}
            begun = self._now()
            for _ in range(calls):
                run()
            both.append((self._now() - begun) / calls)
            inside.append(self._spent[""] / calls)
        return min(inside), min(both) - min(inside)
