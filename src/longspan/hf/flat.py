"""Decoding steps as one flat function: the calls of torch that a model's forward makes, without its modules.

On a CPU the modules of a small model take longer than their matrices: most of a token is Python between the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from longspan.attend import Attender, ForwardState, LayerCall
from longspan.errors import LongspanError
from longspan.hf.cache import LongspanCache
from longspan.store import KVStore

# What turns a tensor into numbers, or gives it a shape that depends on them: a replay would keep the recording's.
_LOOKS = {"item", "tolist", "numpy", "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "equal"}
_LOOKS |= {"allclose", "bincount", "histc", "is_nonzero", "__bool__", "__int__", "__float__", "__index__", "__array__"}
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__iand__", "__ior__"}
_LITERALS = type(None), bool, int, str
_NUMBERS = float, complex, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format

_TRIES = 2  # steps that may differ from the next: what a model sets up in its first ones is set up then
CACHE = object()  # stands for the cache in what a model returns

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
_Kind = tuple[int, torch.dtype]  # rows, and the dtype of their tokens


class Unrecordable(LongspanError):
    """Why a model's steps cannot be recorded."""


@dataclass
class _Call:
    """One call of the forward: what was called, with what, and what it returned."""

    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    @property
    def given(self) -> set[int]:
        return _ids((self.args, self.kwargs))

    @property
    def made(self) -> set[int]:
        """The tensors that are new, and not one of those that it was given."""
        return _ids(self.out) - self.given


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def _ids(tree: Any) -> set[int]:
    return {id(x) for x in _tensors(tree)}


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Tape(TorchFunctionMode):
    """Notes the calls of torch that are made inside of it, the attention of a layer as one call.

    Args:
        ids: the token that the forward is given.
    """

    def __init__(self, ids: Tensor) -> None:
        super().__init__()
        self.ids, self.calls = ids, list[_Call]()  # which keep their tensors, so that an id stays one tensor's
        self.follows = {id(ids)}  # the tensors that depend on the token or on what is stored
        self.layers: dict[int, LayerCall] = {}
        self.reason: str | None = None  # why no other step can make the same calls
        self._changed: list[_Call] = []  # calls that change a tensor that they are given

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = _Call(func, tuple(args), kwargs or {}, func(*args, **(kwargs or {})))
        name = getattr(func, "__name__", "")
        follows = not self.follows.isdisjoint(call.given)
        if follows and name in _LOOKS:
            self.reason = f"it looks into a tensor ({name}), so that what it calls depends on the token"
        if call.given and (name in _IN_PLACE or name.endswith("_") and name[-2:] != "__" or "out" in call.kwargs):
            self._changed.append(call)
        if call.made:
            self.calls.append(call)
            self.follows |= call.made if follows else set()
        return call.out

    def attention(
        self,
        attender: Attender,
        pads: tuple[int, ...],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: LayerCall,
        store: KVStore,
    ) -> Tensor:
        """The attention of a layer, which every step computes anew; ``pads``: the padding of the cache's rows."""
        with torch._C.DisableTorchFunction():
            out = attender.run(q, k, v, replace(layer, padding=pads), store).contiguous()
        self.layers[layer.number] = layer
        self.calls.append(_Call(_attention, (layer.number, q, k, v), {}, out))
        self.follows.add(id(out))
        return out

    def live(self, leaves: Sequence[Any]) -> list[_Call]:
        """The calls that lead to these, and all of attention, in their order."""
        wanted, live = _ids(leaves), list[_Call]()
        for call in reversed(self.calls):
            if call.run is _attention or not call.made.isdisjoint(wanted):
                live.append(call)
                wanted |= call.given
        memory = {_memory(x) for call in live for x in _tensors((call.args, call.kwargs, call.out))}
        for call in self._changed:
            if not memory.isdisjoint(map(_memory, _tensors((call.args, call.kwargs, call.out)))):
                self.reason = f"it changes a tensor in place ({getattr(call.run, '__name__', 'out=')})"
        return live[::-1]


class _Source:
    """The source of a function ``step(ids, attend)`` that makes these calls.

    Attributes:
        lines: one for each call.
        values: what their names stand for: functions, weights, and the numbers that are no literals.

    Raises:
        Unrecordable: a call passes tensors in something else than lists, tuples and arguments of their own.
    """

    def __init__(self, ids: Tensor, calls: Sequence[_Call], leaves: Sequence[Any]) -> None:
        self.values: dict[str, Any] = {}
        self._names = {id(ids): "ids"}
        self.lines = [self._line(call) for call in calls]
        self.lines.append(f"return {self._word(list(leaves))}")

    def function(self) -> Callable[[Tensor, Attend], list[Any]]:
        """The function, compiled: a loop over the calls would take half as long as they do."""
        space = dict(self.values)
        exec("\n    ".join(["def step(ids, attend):", *self.lines]), space)  # noqa: S102
        step: Callable[[Tensor, Attend], list[Any]] = space["step"]
        return step

    def difference(self, other: _Source) -> str | None:
        """What this step calls otherwise than another one, or None."""
        for a, b in zip_longest(self.lines, other.lines):
            if a != b:
                return f"{b} in one step and {a} in the next"
        for a, b in zip(self.values.values(), other.values.values(), strict=True):
            if a is not b and not (isinstance(a, _NUMBERS) and type(a) is type(b) and a == b):
                return f"a {type(a).__name__} that is another one in the next step"
        return None

    def _line(self, call: _Call) -> str:
        run = "attend" if call.run is _attention else self._value(call.run)
        given = [self._word(x) for x in call.args] + [f"{name}={self._word(x)}" for name, x in call.kwargs.items()]
        made = []
        for x in [call.out] if isinstance(call.out, Tensor) else call.out:
            made.append(f"v{len(self._names)}")
            self._names[id(x)] = made[-1]
        return f"{', '.join(made)}{'' if isinstance(call.out, Tensor) else ','} = {run}({', '.join(given)})"

    def _value(self, value: Any) -> str:
        name = f"c{len(self.values)}"
        self.values[name] = value
        return name

    def _word(self, x: Any) -> str:
        if isinstance(x, Tensor):
            if id(x) not in self._names:
                self._names[id(x)] = self._value(x)
            return self._names[id(x)]
        if type(x) in (list, tuple):
            inner = "".join(f"{self._word(one)}, " for one in x)
            return f"[{inner}]" if type(x) is list else f"({inner})"
        if type(x) in _LITERALS:
            return repr(x)
        if isinstance(x, slice):
            return f"slice({self._word(x.start)}, {self._word(x.stop)}, {self._word(x.step)})"
        if _ids(x):
            raise Unrecordable(f"it passes tensors in a {type(x).__name__}")
        return self._value(x)


def _attention(*args: Any) -> Any:
    """Stands for the attention of a layer among the calls."""


@dataclass
class _Flat:
    """A step of so many rows: its function, what each layer brings, and the form of what the model returns."""

    run: Callable[[Tensor, Attend], list[Any]]
    layers: dict[int, LayerCall]
    form: TreeSpec


class FlatSteps:
    """The decoding steps of a model on a CPU, extended by ``attender``.

    A step runs as before, and its calls are noted. As soon as two steps in a row have made the same calls with the same
    numbers on the same weights, later ones make those calls and no others.

    Args:
        forward: the model's own.
    """

    def __init__(self, forward: Callable[..., Any], attender: Attender) -> None:
        self._forward, self._attender = forward, attender
        self._noted: dict[_Kind, list[_Source]] = {}
        self._flat: dict[_Kind, _Flat] = {}

    def __call__(self, cache: LongspanCache, ids: Tensor) -> Any:
        """What the model returns for one token in each row.

        Raises:
            Unrecordable: its calls are not the same in every step. The token was taken in.
        """
        flat = self._flat.get((ids.shape[0], ids.dtype))
        if flat is None:
            return self._note(cache, ids)
        state, padding, run = ForwardState(), cache.padding or (), self._attender.run

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            own = flat.layers[number]
            layer = LayerCall(own.rope, own.scale, padding, own.softcap, own.sinks, number, state)
            return run(q, k, v, layer, cache.layers[number].store).contiguous()

        leaves = flat.run(ids, attend)
        return tree_unflatten([cache if x is CACHE else x for x in leaves], flat.form)

    def others_ran(self) -> None:
        """What else is called changes nothing here."""

    def _note(self, cache: LongspanCache, ids: Tensor) -> Any:
        tape = Tape(ids)
        cache.recorded = partial(tape.attention, self._attender, cache.padding or ())
        try:
            with tape:
                out = self._forward(input_ids=ids, past_key_values=cache, use_cache=True)
        finally:
            cache.recorded = None
        leaves, form = tree_flatten(out)
        leaves = [CACHE if x is cache else x for x in leaves]  # which would keep itself alive
        calls, kind = tape.live(leaves), (ids.shape[0], ids.dtype)
        if tape.reason is not None:
            raise Unrecordable(tape.reason)
        source, noted = _Source(ids, calls, leaves), self._noted.setdefault(kind, [])
        if noted and (difference := source.difference(noted[-1])) is None:
            del self._noted[kind]
            changing = [call for call in calls if not call.made.isdisjoint(tape.follows)]
            self._flat[kind] = _Flat(_Source(ids, changing, leaves).function(), tape.layers, form)
        elif len(noted) == _TRIES:
            raise Unrecordable(f"its steps differ: {difference}")
        else:
            noted.append(source)
        return out
