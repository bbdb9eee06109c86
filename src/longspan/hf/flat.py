"""Decoding steps as one flat function: the calls of torch that a model's forward makes, without its modules.

On a CPU the modules of a small model take longer than their matrices: most of a token is Python between the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, zip_longest
from types import MethodWrapperType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from longspan.attend import Attender, ForwardState, LayerCall
from longspan.errors import LongspanError
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.cache import LongspanCache
from longspan.rope import Rope
from longspan.store import KVStore

# Calls that turn a tensor into numbers, or into a shape that depends on them: a replay would keep the recording's.
_LOOKS = {"item", "tolist", "numpy", "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "equal"}
_LOOKS |= {"allclose", "bincount", "histc", "is_nonzero", "__bool__", "__int__", "__float__", "__index__", "__array__"}
_LOOKS |= {"__contains__"}
_LITERALS = type(None), bool, int, str
# Values that are compared: numbers, and what reads an attribute of a tensor, such as its transpose.
_EQUAL: tuple[type, ...] = (float, complex, range, torch.Size, torch.dtype, torch.device, MethodWrapperType)

_TRIES = 2  # steps that may differ from the next: in its first ones a model sets up parts of its own
CACHE = object()  # stands for the cache in what a model returns

Attend = Callable[[int, Tensor, Tensor, Tensor, float, float | None, Tensor | None], Tensor]
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
    random: bool = False

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
    try:
        return x.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError) as error:
        kind = f"type {type(x).__name__}" if x.layout is torch.strided else f"layout {x.layout}"
        raise Unrecordable(f"a tensor of {kind} has its numbers in others, so that no write to it is seen") from error


def unrecordable_weight(model: nn.Module) -> str | None:
    """The reason against noting steps with a model's weights and buffers, or None: torchao's have no memory."""
    for name, x in chain(model.named_parameters(), model.named_buffers()):
        try:
            _memory(x)
        except Unrecordable as error:
            return f"{name}: {error}"
    return None


class _Operations(TorchDispatchMode):
    """Effects of a call's operations beside their results.

    Attributes:
        look: whether their result, or its shape, depends on a tensor's values and is a number for Python.
        random: whether they draw numbers.
        written: the tensors that they write to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.look = self.random = False
        self.written: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, schema = kwargs or {}, func._schema
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}:
            # Indexing has the tag whatever the index; only a mask's values decide on a shape.
            masked = any(x.dtype in (torch.bool, torch.uint8) for x in _tensors(args[1:]))
            self.look = self.look or masked or schema.name != "aten::index"
        self.random = self.random or torch.Tag.nondeterministic_seeded in func.tags
        for n, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.written += _tensors(args[n] if n < len(args) else kwargs.get(argument.name))
        return func(*args, **kwargs)


class Tape(TorchFunctionMode):
    """Notes the calls of torch that are made inside of it, the attention of a layer as one call.

    Args:
        ids: the token that the forward is given.
        weights: the model's, and its buffers; values computed from them are computed anew in every step.
    """

    def __init__(self, ids: Tensor, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self.calls = list[_Call]()  # which keep their tensors, so that an id stays one tensor's
        self.follows = {id(ids), *map(id, weights)}  # the tensors that may change from step to step
        self.ropes: dict[int, Rope] = {}
        self.reason: str | None = None  # why no other step can make the same calls
        self._changed: list[_Call] = []  # calls that change a tensor that they are given

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _Operations() as does:
            out = func(*args, **(kwargs or {}))
        call = _Call(func, tuple(args), kwargs or {}, out, does.random)
        name = getattr(func, "__name__", "")
        looks = does.look or name in _LOOKS or name == "where" and len(args) + len(call.kwargs) == 1
        follows = not self.follows.isdisjoint(call.given)
        if follows and looks:
            self.reason = f"it looks into a tensor ({name}), so that what it calls depends on the token"
        given = {_memory(x) for x in _tensors((call.args, call.kwargs))} if does.written else set()
        if name == "__set__" or not given.isdisjoint(map(_memory, does.written)):
            self._changed.append(call)
        if call.made:
            self.calls.append(call)
            self.follows |= call.made if follows else set()
        return out

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
        """The attention of a layer, which every step computes anew.

        Args:
            pads: the padding of the cache's rows.
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.

        Returns:
            ``[B, 1, H, Dv]``.
        """
        with torch._C.DisableTorchFunction():
            out = attender.run(q, k, v, replace(layer, padding=pads), store).contiguous()
        self.ropes[layer.number] = layer.rope
        given = layer.number, q, k, v, layer.scale, layer.softcap, layer.sinks
        self.calls.append(_Call(_attention, given, {}, out))
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
                self.reason = f"it changes a tensor in place ({getattr(call.run, '__name__', call.run)})"
        if any(call.random for call in live):
            self.reason = "it draws random numbers"
        return live[::-1]


class _StepSource:
    """The source of a function ``step(ids, attend)`` that makes these calls.

    Attributes:
        lines: one for each call.
        values: what their names stand for: functions, weights, and the numbers that are no literals.

    Raises:
        Unrecordable: a call passes tensors in something else than lists, tuples and arguments of their own.
    """

    def __init__(self, ids: Tensor, calls: Sequence[_Call], leaves: Sequence[Any]) -> None:
        self.values: dict[str, Any] = {}
        self._names, self._made = {id(ids): "ids"}, count()
        self.lines = [self._line(call) for call in calls]
        self.lines.append(f"return {self._word(list(leaves))}")

    def function(self) -> Callable[[Tensor, Attend], list[Any]]:
        """The function, compiled: a loop over the calls would take half as long as they do."""
        space = dict(self.values)
        exec("\n    ".join(["def step(ids, attend):", *self.lines]), space)  # noqa: S102
        step: Callable[[Tensor, Attend], list[Any]] = space.pop("step")  # which would hold itself, and the weights
        return step

    def difference(self, other: _StepSource) -> str | None:
        """The first difference from another step's calls, or None."""
        for a, b in zip_longest(self.lines, other.lines):
            if a != b:
                return f"{b or 'no call'} in one step and {a or 'no call'} in the next"
        for a, b in zip(self.values.values(), other.values.values(), strict=True):
            if a is not b and not (isinstance(a, _EQUAL) and type(a) is type(b) and a == b):
                return f"a {type(a).__name__} that is another one in the next step"
        return None

    def _line(self, call: _Call) -> str:
        run = "attend" if call.run is _attention else self._value(call.run)
        given = [self._word(x) for x in call.args] + [f"{name}={self._word(x)}" for name, x in call.kwargs.items()]
        made = []
        for x in [call.out] if isinstance(call.out, Tensor) else call.out:
            made.append(f"v{next(self._made)}")
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


def _mask(padding: Sequence[int], tokens: int) -> Tensor:
    """The ``attention_mask`` ``[B, tokens]`` of rows that begin with so much padding."""
    return (torch.arange(tokens, device="cpu") >= torch.tensor(padding, device="cpu")[:, None]).long()


@dataclass
class _Flat:
    """A step of so many rows: its function, the rotation of each layer, and the form of what the model returns."""

    run: Callable[[Tensor, Attend], list[Any]]
    ropes: dict[int, Rope]
    form: TreeSpec


class FlatSteps:
    """The decoding steps of a model on a CPU, extended by ``attender``.

    A step runs as before, and its calls are noted. As soon as two steps in a row, after different numbers of tokens,
    have made the same calls with the same numbers on the same weights, later ones make those calls and no others.

    Args:
        model: whose weights are read anew in every step.
        forward: its own.
    """

    def __init__(self, model: nn.Module, forward: Callable[..., Any], attender: Attender) -> None:
        self._model, self._forward, self._attender = model, forward, attender
        self._noted: dict[_Kind, list[tuple[int, _StepSource]]] = {}  # with the number of tokens in the cache
        self._flat: dict[_Kind, _Flat] = {}

    def __call__(self, cache: LongspanCache, ids: Tensor) -> Any:
        """The output of the model for one token in each row, ``ids`` ``[B, 1]``.

        Raises:
            Unrecordable: its calls are not the same in every step. The token was taken in.
        """
        flat = self._flat.get((ids.shape[0], ids.dtype))
        if flat is None:
            return self._note(cache, ids)
        state, padding, run = ForwardState(), cache.padding or (), self._attender.run

        def attend(
            number: int, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
        ) -> Tensor:
            layer = LayerCall(flat.ropes[number], scale, padding, softcap, sinks, number, state)
            return run(q, k, v, layer, cache.layers[number].store).contiguous()

        leaves = flat.run(ids, attend)
        return tree_unflatten([cache if x is CACHE else x for x in leaves], flat.form)

    def others_ran(self) -> None:
        """Other calls change nothing here."""

    def _note(self, cache: LongspanCache, ids: Tensor) -> Any:
        kind, past = (ids.shape[0], ids.dtype), cache.get_seq_length()
        noted = self._noted.setdefault(kind, [])
        if noted and noted[-1][0] == past:  # of another cache: values that depend on the length would not show
            mask = _mask(cache.padding, past + 1) if cache.padding and any(cache.padding) else None
            return self._forward(input_ids=ids, attention_mask=mask, use_cache=True, **{CACHE_ARGUMENT: cache})
        tape = Tape(ids, chain(self._model.parameters(), self._model.buffers()))
        cache.recorded = partial(tape.attention, self._attender, cache.padding or ())
        try:
            with tape:
                out = self._forward(input_ids=ids, use_cache=True, **{CACHE_ARGUMENT: cache})
        finally:
            cache.recorded = None
        leaves, form = tree_flatten(out)
        leaves = [CACHE if x is cache else x for x in leaves]  # which would keep itself alive
        calls = tape.live(leaves)
        if tape.reason is not None:
            raise Unrecordable(tape.reason)
        source = _StepSource(ids, calls, leaves)
        if noted and (difference := source.difference(noted[-1][1])) is None:
            self._noted.pop(kind, None)  # another thread may have been here
            changing = [call for call in calls if not call.made.isdisjoint(tape.follows)]
            self._flat[kind] = _Flat(_StepSource(ids, changing, leaves).function(), tape.ropes, form)
        elif len(noted) == _TRIES:
            raise Unrecordable(f"its steps differ: {difference}")
        else:
            noted.append((past, source))
        return out
