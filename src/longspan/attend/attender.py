"""Runs one method on a layer's queries, keys and values, by the step that these tokens can take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from longspan.attend.choosing import Chooser
from longspan.attend.layer import LayerCall
from longspan.attend.observing import Observer
from longspan.attend.ranks import Ranks
from longspan.attend.state import ForwardState
from longspan.attend.steps.general import GeneralStep
from longspan.attend.steps.token_cpu import TokenStep
from longspan.attend.tables import Tables
from longspan.calibration import Calibration
from longspan.errors import LongspanError
from longspan.kernels import cpu
from longspan.kernels.dispatch import Impl, check_impl, runs_in_c
from longspan.memory import JoinedStores, KVStore
from longspan.methods import Method
from longspan.rope import Rope

Step = Literal["auto", "token", "parts"]


class Attender:
    """One resolved method at one window, for all layers of a model.

    Args:
        method: a resolved method.
        window: the trained window ``L``, in tokens.
        impl: which implementation runs; see ``longspan.kernels.dispatch``.
        calibration: reduced scores, for methods that choose keys by them.
        step: how a token that comes alone to a store is taken in: ``"auto"``, by one call of C if that can be and
            else each part of the method by its own kernel; ``"token"``, by one call of C or not at all; ``"parts"``,
            never by one call.
        ranks: the processes that the layers' heads are split over, if they are: this one attends with its own, and
            scores of a whole layer are summed over all. A calibration is that of its own key heads.

    Raises:
        CalibrationError: the method asks for reduced scores that the calibration does not have.
        ValueError: the method sees chosen keys from positions outside this window; an unknown ``impl`` or ``step``.
    """

    def __init__(
        self,
        method: Method,
        window: int,
        impl: Impl = "auto",
        calibration: Calibration | None = None,
        step: Step = "auto",
        ranks: Ranks | None = None,
    ) -> None:
        check_impl(impl)
        if step not in get_args(Step):
            raise LongspanError(f"step must be one of {', '.join(get_args(Step))}, not {step!r}")
        method.check_calibration(calibration)
        method.check_reach(window)
        self.method, self.window, self.impl, self.calibration, self.step = method, window, impl, calibration, step
        self.chooser = Chooser(method, window, impl, calibration, ranks) if method.selects else None
        self.tables = Tables(method, window, self.chooser)
        self._general, self._token = GeneralStep(self.tables, impl), TokenStep(self.tables, impl)
        # Scores and choices of a named implementation in torch's operations are computed by those too.
        self._without_c = not runs_in_c(impl)

    @property
    def stored_rotations(self) -> int:
        """How many rotations of each key the store holds."""
        return self.method.stored_rotations(self.window)

    @property
    def observer(self) -> Observer | None:
        """The observer of every choice; None unless set, and always if no keys are chosen."""
        return self.chooser.observer if self.chooser is not None else None

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        if self.chooser is None:
            raise LongspanError(f"{self.method.name} keeps keys by their index, so there are no choices to observe")
        self.chooser.observer = observer

    def new_index(self, layer: int, rope: Rope) -> Any:
        """The selector of a layer's keys, kept in its store; None if keys are not chosen.

        It takes in queries and keys whose channels are in the order of ``rope.pair``.
        """
        return self.chooser.selector(layer, rope) if self.chooser is not None else None

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rope: Rope,
        *,
        scale: float,
        store: KVStore | JoinedStores | None = None,
        padding: Sequence[int] | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        layer: int = 0,
        state: ForwardState | None = None,
    ) -> Tensor:
        """``run`` with the fields of a ``LayerCall`` by name; no padding and a state of its own unless given.

        Returns:
            ``[B, H, T, Dv]``.
        """
        pads = tuple(padding) if padding is not None else (0,) * q.shape[0]
        call = LayerCall(rope, scale, pads, softcap, sinks, layer, ForwardState() if state is None else state)
        return self.run(q, k, v, call, store).transpose(1, 2)

    def run(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore | JoinedStores | None) -> Tensor:
        """Attention of new tokens to the stored and the new ones.

        Args:
            q, k, v: ``[B, H, T, D]``, ``[B, Hkv, T, D]``, ``[B, Hkv, T, Dv]``, unrotated.
            layer: what the layer brings besides.
            store: the layer's cache, appended to; without one the new tokens are all. Of joined stores each has a row
                and takes in one token; the row's padding is counted in its own store.

        Returns:
            ``[B, T, H, Dv]``; rows of padding are zero.

        Raises:
            ValueError: ``step="token"``, and a single token cannot be taken in by one call of C; joined stores get
                another number of rows or several tokens.
        """
        if isinstance(store, JoinedStores):
            return self._run_joined(q, k, v, layer, store)
        if self.step != "parts" and store is not None and q.shape[2] == 1:
            out = self._token(q, k, v, layer, store)
            if not isinstance(out, str):
                return out
            if self.step == "token" and store.length:
                raise LongspanError(f"step='token' cannot run here: {out}; use step='auto'")
        with cpu.disabled() if self._without_c else nullcontext():
            return self._general(q, k, v, layer, store)

    def again(self, q: Tensor, values: Tensor, layer: LayerCall, store: KVStore) -> Tensor:
        """Attention of a store's newest tokens ``[B, H, T, D]`` once more, to other values ``[B, Hkv, N, W]``.

        Returns:
            ``[B, T, H, W]``; see ``GeneralStep.again``.
        """
        with cpu.disabled() if self._without_c else nullcontext():
            return self._general.again(q, values, layer, store)

    def _run_joined(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, joined: JoinedStores) -> Tensor:
        """``run`` of one token of each store; those that C cannot compute together go one by one."""
        if q.shape[2] != 1 or not len(q) == len(layer.padding) == len(joined.stores):
            raise LongspanError(
                f"{len(joined.stores)} joined stores take in one token each, not {q.shape[2]} of {len(q)} rows"
            )
        if self.step == "parts":
            out, rows = q.new_empty(len(q), 1, q.shape[1], v.shape[3]), [*range(len(q))]
        else:
            out, rows = self._token.joined(q, k, v, layer, joined)
        for row in rows:
            own = replace(layer, padding=layer.padding[row : row + 1], state=layer.state.row(row), row=row)
            out[row] = self.run(q[row : row + 1], k[row : row + 1], v[row : row + 1], own, joined.stores[row])[0]
        return out

    def decode_reason(self, rope: Rope, layer: int, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why a layer's single tokens are not taken in by one call of C, or None if they are; for reports."""
        return self._token.layer_reason(rope, layer, dtype, device)
