"""A bar for every prefill that takes long: how far it is, at which rate, and how long it will still take.

A forward runs its layers one after the other, and over many tokens they are nearly all of it and cost the same. So the
layers that are done say how far a forward is, with any method and with none. If ``generate`` reads a prompt in
prefill chunks (``prefill_chunk_size``), each is a forward, and how many tokens there are in all is known before the
first one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread, local
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.errors import LongspanError
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.model.unwrap import module_of

AFTER = 2.0  # seconds; a shorter prefill has no bar
OFTEN = 0.25  # seconds from one look to the next


See = Callable[["Prefill | None"], None]

_terminal = Lock()  # held by the bar that is on stderr
_opening = Lock()  # held while a block puts itself on a model, or takes itself off


@dataclass(frozen=True)
class Prefill:
    """How far a prompt is.

    Attributes:
        total: tokens to read, of a row.
        read: those that have gone through all layers, parts of a token counted in.
        layer, layers: the one that runs, of how many.
        seconds: from its beginning to the end of the last layer that has run. waited: since then.
    """

    total: int
    read: float
    layer: int
    layers: int
    seconds: float
    waited: float

    @property
    def rate(self) -> float:
        """Tokens a second, of a row; 0 as long as no layer has run."""
        return self.read / self.seconds if self.seconds else 0.0

    @property
    def left(self) -> float | None:
        """Seconds to go at this rate; None until that is known."""
        return max((self.total - self.read) / self.rate - self.waited, 0.0) if self.rate else None

    def __str__(self) -> str:
        words = f"{self.total:,} tokens, layer {self.layer} of {self.layers}"
        if self.left is None:
            return words
        minutes, seconds = divmod(round(self.left), 60)
        hours, minutes = divmod(minutes, 60)
        left = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
        return f"{words}, {self.rate:,.0f} tokens/s, {left} left"


@contextmanager
def progress(model: PreTrainedModel, *, console: Console | None = None) -> Iterator[None]:
    """Show a bar on stderr while a forward of ``model`` over many tokens takes longer than two seconds.

    The model may be extended or not, and may be extended or restored in the block. On a GPU a prefill waits for each
    layer but the last one, which costs microseconds a layer; decoding is left alone. Several threads may run the model,
    and blocks may be open at once: there is one bar, of the prefill that came first, and the next one's follows it.

    Args:
        console: where to show it instead.

    Raises:
        LongspanError: it cannot be told what the model's layers are.
    """
    where = Console(stderr=True) if console is None else console
    bar = Progress(BarColumn(bar_width=20), TextColumn("{task.description}"), console=where, transient=True)
    task = bar.add_task("")

    def show(now: Prefill | None) -> None:
        if now is None:
            bar.stop()
        else:
            bar.update(task, total=now.total, completed=now.read, description=str(now))
            bar.start()  # does nothing to one that is shown

    with following(model, show, _terminal if console is None else None):
        yield


@contextmanager
def following(model: PreTrainedModel, see: See, turn: Lock | None = None) -> Iterator[None]:
    """Tell ``see`` how far a prefill of ``model`` is, from two seconds on, and None when it is over.

    ``see`` is called about four times a second, by a thread of its own, and with None by the one whose prefill is over;
    never twice at once. Of prefills that several threads run it is told of one until that is over, and of another then.

    Args:
        turn: held while ``see`` is told of a prefill, for those that share it.

    Raises:
        LongspanError: it cannot be told what the model's layers are.
    """
    model = module_of(model)
    decoder, layers = decoder_and_layers(model)
    block = Following(len(layers), see, Lock() if turn is None else turn)
    handles = [
        decoder.register_forward_pre_hook(lambda *given: block.of_thread.watch.begins(*given), with_kwargs=True),
        decoder.register_forward_hook(lambda *given: block.of_thread.watch.ends(*given), always_call=True),
        *(layer.register_forward_hook(lambda *given: block.of_thread.watch.layer_ends(*given)) for layer in layers),
    ]
    _Expecting.put(model, block)
    try:
        yield
    finally:
        _Expecting.take(model, block)
        for handle in handles:
            handle.remove()
        block.close()


class _Expecting:
    """Stands for a model's ``_prefill`` while blocks are open: the tokens to be read are known here alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._own = vars(model).get("_prefill")
        self._prefill = model._prefill
        self._open: list[Following] = []

    @classmethod
    def put(cls, model: PreTrainedModel, block: Following) -> None:
        """Tell ``block`` too."""
        with _opening:
            if not hasattr(model, "_prefill"):
                return
            if not isinstance(model._prefill, cls):
                model._prefill = cls(model)
            model._prefill._open = [*model._prefill._open, block]

    @classmethod
    def take(cls, model: PreTrainedModel, block: Following) -> None:
        """Tell ``block`` no more; the model's own is back when no block is left."""
        with _opening:
            installed = vars(model).get("_prefill")
            if not isinstance(installed, cls):
                return
            installed._open = [one for one in installed._open if one is not block]
            if not installed._open:
                del model._prefill
                if installed._own is not None:
                    model._prefill = installed._own

    def __call__(self, input_ids: Tensor, config: Any, model_kwargs: dict[str, Any], *more: Any, **named: Any) -> Any:
        cache = model_kwargs.get(CACHE_ARGUMENT)
        watches = [block.of_thread.watch for block in self._open]
        for watch in watches:
            watch.expect(input_ids.shape[-1] - (0 if cache is None else cache.get_seq_length()))
        try:
            return self._prefill(input_ids, config, model_kwargs, *more, **named)
        finally:
            for watch in watches:
                watch.finish()


class Following:
    """The prefills that threads run while a block is open; ``see`` is told of the one that came first.

    Args:
        layers: how many a forward runs.
        turn: held while ``see`` is told of a prefill.
    """

    def __init__(self, layers: int, see: See, turn: Lock) -> None:
        self._see, self._turn = see, turn
        self.of_thread = OfThread(layers, self)
        self._lock, self._closed = Lock(), Event()
        self.running: list[Watch] = []  # in the order in which they began
        self._told: Watch | None = None
        self._thread = Thread(target=self._tell, daemon=True)
        self._thread.start()

    def ends(self, watch: Watch) -> None:
        """A thread's prefill is over, if it ran one."""
        with self._lock:
            if watch in self.running:
                self.running.remove(watch)
            if watch is self._told:
                self._told = None
                try:
                    # A failure to show ends no forward; rich leaves the program if a pipe is closed.
                    with suppress(Exception, SystemExit):
                        self._see(None)
                finally:
                    self._turn.release()

    def close(self) -> None:
        """The block ends, in the middle of other threads' forwards perhaps."""
        self._closed.set()
        self._thread.join()
        for watch in list(self.running):
            self.ends(watch)

    def _tell(self) -> None:
        while not self._closed.wait(OFTEN):
            with self._lock:
                if self._told is None and self.running:
                    first, now = self.running[0], self.running[0].now
                    if now.seconds + now.waited >= AFTER and self._turn.acquire(blocking=False):
                        self._told = first
                if self._told is not None:
                    self._see(self._told.now)


class OfThread(local):
    """A ``watch`` for each thread, made when the thread asks for it first."""

    def __init__(self, layers: int, block: Following) -> None:
        self.watch = Watch(layers, block)


class Watch:
    """The state of the prefill that a thread runs.

    Args:
        layers: how many a forward runs.
        block: what is told of its beginning and end.
    """

    def __init__(self, layers: int, block: Following) -> None:
        self._layers, self.block = layers, block
        # Tokens that are expected, of forwards before, and of this one; how many of its layers have run.
        self._expected = self._read = self.tokens = self._done = 0
        self._begun = self._ended = 0.0
        self._event: torch.Event | None = None

    @property
    def now(self) -> Prefill:
        """How far it is; a layer's work before its end is not known."""
        total = max(self._expected, self._read + self.tokens)
        read = min(self._read + self.tokens * self._done / self._layers, total)
        layer, ended = min(self._done + 1, self._layers), self._ended
        return Prefill(total, read, layer, self._layers, ended - self._begun, time.perf_counter() - ended)

    def expect(self, tokens: int) -> None:
        """Say how many tokens the forwards to come read together."""
        self.finish()
        self._expected = tokens

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """A forward begins; one that runs while another thread registers this hook comes without ``kwargs``."""
        if kwargs is None:
            return
        inputs = kwargs.get("input_ids", args[0] if args else None)
        inputs = kwargs.get("inputs_embeds") if inputs is None else inputs
        self.tokens = int(inputs.shape[1]) if isinstance(inputs, Tensor) and inputs.dim() > 1 else 1
        self._done = 0
        if self.tokens > 1 and self not in self.block.running:
            self._begun = self._ended = time.perf_counter()
            self.block.running.append(self)

    def layer_ends(self, module: nn.Module, args: Any, output: Any) -> None:
        """A layer of the forward has run."""
        if self.tokens < 2:
            return
        out = output[0] if isinstance(output, tuple) else output
        if isinstance(out, Tensor) and out.device.type != "cpu":
            self._wait(out.device)
        self._done += 1
        self._ended = time.perf_counter()

    def ends(self, module: nn.Module, args: Any, output: Any) -> None:
        """The forward ends, in an error perhaps."""
        if self.tokens < 2:
            return
        self._read, self.tokens, self._done = self._read + self.tokens, 0, 0
        self._event = None
        if self._read >= self._expected:
            self.finish()

    def finish(self) -> None:
        """Nothing runs any more."""
        self.block.ends(self)
        self._event = None
        self._expected = self._read = self.tokens = self._done = 0

    def _wait(self, device: torch.device) -> None:
        """Wait for the layer before, so that what is counted has run; this one keeps the device busy meanwhile."""
        event = torch.Event(device)
        event.record(torch.accelerator.current_stream(device))
        if self._event is not None:
            self._event.synchronize()
        self._event = event


def decoder_and_layers(model: PreTrainedModel) -> tuple[nn.Module, list[nn.Module]]:
    """The module whose forward runs the layers of a text model, and those."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    inside = model.get_decoder() if hasattr(model, "get_decoder") else model
    for module in (inside, model):
        for owner in module.modules():
            for child in owner.children():
                if isinstance(child, nn.ModuleList) and len(child) == count:
                    return owner, list(child)
    raise LongspanError(f"{type(model).__name__}: none of its lists of modules has its {count} layers")
