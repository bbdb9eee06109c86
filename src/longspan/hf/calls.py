"""The calls that a cache was filled by, for methods under which what is computed of a token depends on later ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import Cache

from longspan.attend import ForwardState, LayerCall
from longspan.errors import CacheError
from longspan.hf.argument import put_cache
from longspan.memory import KVStore
from longspan.methods import Method

Run = Callable[[Tensor, Tensor, Tensor, LayerCall, KVStore | None], Tensor]

_BY_TOKEN = "input_ids", "inputs_embeds", "per_layer_inputs"  # of a decoder's inputs those that differ by token
_DROPPED = 64  # tokens at the end that may be dropped again if they came as embeddings


@dataclass(frozen=True)
class _Arrival:
    """Tokens ``start : stop`` that came together.

    Attributes:
        inputs: of the tokens ``kept : stop``, ``[B, T, ...]`` each, by name.
    """

    start: int
    stop: int
    kept: int
    inputs: Mapping[str, Tensor]

    def of(self, start: int, stop: int) -> dict[str, Tensor]:
        """The inputs of the tokens ``start : stop``, which are kept."""
        return {name: x[:, start - self.kept : stop - self.kept] for name, x in self.inputs.items()}

    def until(self, stop: int) -> _Arrival:
        return replace(self, stop=stop, kept=min(self.kept, stop), inputs=self.of(min(self.kept, stop), stop))


class Attached(Protocol):
    """A model's attachment as its caches need it; see ``longspan.hf.hooks.Attachment``."""

    def again(self, cache: Any) -> Callable[[dict[str, Tensor], tuple[int, ...]], None]:
        """What computes tokens of a cache again, of inputs ``[B, T, ...]`` by name and of rows with such padding."""


class Calls:
    """What came together with what, and the inputs, so that what depended on dropped tokens is computed again.

    Token ids are kept of every call of several tokens, and embeddings of the last one's last tokens.

    Attributes:
        guesses: how many of the next forward's last tokens are guesses, which may be dropped again.
    """

    def __init__(self, method: Method, window: int) -> None:
        self._method, self._window = method, window
        self._follows = method.call_dependent or method.length_dependent
        self._calls: list[_Arrival] = []
        self._attachment: Callable[[], Attached | None] = lambda: None
        self.guesses = 0

    def begin(self, attachment: Attached, cache: Cache, given: Mapping[str, Any], tokens: int) -> list[ForwardState]:
        """A forward begins; return one state for each of its last tokens that is to be attended as if it came alone.

        Args:
            given: what the decoder is given.
            tokens: those that are new.
        """
        guesses, self.guesses = min(self.guesses, tokens - 1), 0
        if tokens == 1 or not self._follows:
            return []
        if (together := tokens - guesses) > 1:
            past = cache.get_seq_length()
            self.crop(past)  # a forward that broke off may have begun here
            self._attachment = ref(attachment)
            inputs = {name: given[name][:, :together] for name in _BY_TOKEN if isinstance(given.get(name), Tensor)}
            skipped = 0
            if "input_ids" not in inputs:
                self._calls = [one if "input_ids" in one.inputs else _without_inputs(one) for one in self._calls]
                most = None if self._method.length_dependent else self._method.selection(self._window).together
                skipped = 0 if most is None else max(together - most - _DROPPED, 0)
            # Copies, since a caller may write to its tensors, and a view would keep all of an embedding's.
            inputs = {name: x[:, skipped:].clone() for name, x in inputs.items()}
            self._calls.append(_Arrival(past, past + together, past + skipped, inputs))
        return [ForwardState() for _ in range(guesses)]

    def adopt(self, tokens: int) -> None:
        """Tokens were read from elsewhere, in calls that nobody knows of."""
        if self._follows:
            self._calls = [_Arrival(0, tokens, tokens, {})]

    def unchanged(self, length: int, padding: Sequence[int]) -> int:
        """The most tokens, at most ``length``, none of which would be another without those after them.

        Args:
            padding: padding tokens at the start of each row.
        """
        while (call := self._around(length)) is not None:
            least = self._first_changed(call, length, padding)
            if least == length:
                break
            while least < length:  # to where a query chunk begins in every row
                length, least = least, self._first_changed(call, least, padding, dense=True)
        return length

    def _first_changed(self, call: _Arrival, length: int, padding: Sequence[int], dense: bool = False) -> int:
        """``Method.first_changed`` of the rows, the first one; ``length`` if there is none."""
        if length == call.start:
            return length
        rows = [(pad, max(call.start - pad, 0)) for pad in padding if pad < length]
        changed = (
            pad + self._method.first_changed(self._window, start, call.stop - pad, length - pad, dense)
            for pad, start in rows
        )
        return max(min([length, *changed]), call.start)

    def again(self, cache: Cache, start: int, stop: int) -> Callable[[tuple[int, ...]], None]:
        """What computes the tokens ``start : stop`` of one call again, once the cache ends before them.

        It takes the padding tokens at the start of each row.

        Raises:
            CacheError: their inputs are not kept, or the model is not extended as it was.
        """
        call = self._around(stop)
        if call is None or start < call.kept:
            raise CacheError(
                f"tokens {start} to {stop} were computed together with tokens that would be dropped, and their inputs "
                f"are not kept; cache.crop({start}) drops them as well, and they can be passed once more"
            )
        attachment = self._attachment()
        if attachment is None:
            raise CacheError("tokens cannot be computed again, since the model is not extended")
        return partial(attachment.again(cache), call.of(start, stop))

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        self._calls = [one if one.stop <= length else one.until(length) for one in self._calls if one.start < length]

    def select(self, rows: Tensor) -> None:
        """Keep rows ``rows`` of the batch, in that order: ``[B]`` int64, of the new ``B``."""

        def selected(x: Tensor) -> Tensor:
            return x.index_select(0, rows.to(x.device))

        self._calls = [replace(c, inputs={name: selected(x) for name, x in c.inputs.items()}) for c in self._calls]

    def copy(self) -> Calls:
        twin = Calls(self._method, self._window)
        twin._calls, twin._attachment = list(self._calls), self._attachment
        return twin

    def _around(self, length: int) -> _Arrival | None:
        """The call that has tokens before ``length`` and after it."""
        return next((one for one in self._calls if one.start < length < one.stop), None)


def _without_inputs(call: _Arrival) -> _Arrival:
    return replace(call, kept=call.stop, inputs={})


def each_guess_alone(run: Run, guesses: Sequence[ForwardState]) -> Run:
    """``Attender.run``, of the same shapes, for tokens of which the last are attended as if they came alone.

    Args:
        guesses: for each of them, what its layers share.
    """

    def in_turn(q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore | None) -> Tensor:
        sure = q.shape[2] - len(guesses)
        outs = [run(q[:, :, :sure], k[:, :, :sure], v[:, :, :sure], layer, store)]
        for n, state in enumerate(guesses, sure):
            own = slice(n, n + 1)
            outs.append(run(q[:, :, own], k[:, :, own], v[:, :, own], replace(layer, state=state), store))
        return torch.cat(outs, dim=1)

    return in_turn


def compute(
    decoder: nn.Module, names: Collection[str], cache: Cache, inputs: dict[str, Tensor], padding: tuple[int, ...]
) -> None:
    """Run a decoder on tokens that follow those of a cache.

    Args:
        names: of what its forward takes.
        inputs: of the tokens, ``[B, T, ...]`` each, by name.
        padding: padding tokens at the start of each row.
    """
    arguments: dict[str, Any] = dict(inputs)
    if any(padding):
        first = next(iter(inputs.values()))
        stop = cache.get_seq_length() + first.shape[1]
        mask = torch.arange(stop, device="cpu") >= torch.tensor(padding, device="cpu")[:, None]
        arguments["attention_mask"] = mask.long().to(first.device)
    put_cache(arguments, cache, names)
    with torch.no_grad():
        decoder(**arguments)
