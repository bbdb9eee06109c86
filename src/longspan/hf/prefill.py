"""A bar for every prefill that takes long: how far it is, at which rate, and how long it will still take.

A forward runs its layers one after the other, and over many tokens they are nearly all of it and cost the same. So the
layers that are done say how far a forward is, with any method and with none. Where ``generate`` reads a prompt in
pieces (``prefill_chunk_size``), each is a forward, and how many tokens there are in all is known before the first one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.errors import LongspanError

AFTER = 2.0  # seconds; what takes less has no bar


@contextmanager
def progress(model: PreTrainedModel, *, console: Console | None = None) -> Iterator[None]:
    """Show a bar on stderr while a forward of ``model`` over many tokens takes longer than two seconds.

    The model may be extended or not, and may be extended or restored in the block. On a GPU a prefill waits for each
    layer but the last one, which costs microseconds a layer; decoding is left alone.

    Args:
        console: where to show it instead.

    Raises:
        LongspanError: it cannot be told what the model's layers are.
    """
    decoder, layers = _decoder_and_layers(model)
    bar = _Bar(len(layers), console or Console(stderr=True))
    handles = [
        decoder.register_forward_pre_hook(bar.begins, with_kwargs=True),
        decoder.register_forward_hook(bar.ends, always_call=True),
        *(layer.register_forward_hook(bar.layer_ends) for layer in layers),
    ]
    prefill = getattr(model, "_prefill", None)
    if prefill is not None:
        # What of a prompt is to be read is known here alone; the forwards see one piece each.
        def told(input_ids: Tensor, config: Any, model_kwargs: dict[str, Any], *more: Any, **named: Any) -> Any:
            cache = model_kwargs.get("past_key_values")
            bar.expect(input_ids.shape[-1] - (0 if cache is None else cache.get_seq_length()))
            try:
                return prefill(input_ids, config, model_kwargs, *more, **named)
            finally:
                bar.finish()

        model._prefill = told
    try:
        yield
    finally:
        bar.finish()
        for handle in handles:
            handle.remove()
        vars(model).pop("_prefill", None)


class _Bar:
    """What is known of the prefill that runs, and the bar that shows it.

    Args:
        layers: how many a forward runs.
    """

    def __init__(self, layers: int, console: Console) -> None:
        self._layers, self._console = layers, console
        self._expected = 0  # tokens of all pieces; 0 where nobody said
        self._read = self._tokens = self._done = 0  # tokens of pieces before; of this forward; its layers
        self._begun = 0.0
        self._timer: Timer | None = None
        self._bar: Progress | None = None
        self._event: torch.Event | None = None

    def expect(self, tokens: int) -> None:
        """Say how many tokens the forwards to come read together."""
        self.finish()
        self._expected = tokens

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins."""
        given = kwargs.get("input_ids", args[0] if args else None)
        given = kwargs.get("inputs_embeds") if given is None else given
        self._tokens = int(given.shape[1]) if isinstance(given, Tensor) and given.dim() > 1 else 1
        self._done = 0
        if self._tokens > 1 and self._timer is None:
            self._begun = time.perf_counter()
            self._timer = Timer(AFTER, self._show)
            self._timer.daemon = True
            self._timer.start()

    def layer_ends(self, module: nn.Module, args: Any, output: Any) -> None:
        """A layer of the forward has run."""
        if self._tokens < 2:
            return
        out = output[0] if isinstance(output, tuple) else output
        if isinstance(out, Tensor) and out.device.type != "cpu":
            self._wait(out.device)
        self._done += 1
        self._update()

    def ends(self, module: nn.Module, args: Any, output: Any) -> None:
        """The forward ends, in an error perhaps."""
        if self._tokens < 2:
            return
        self._read += self._tokens
        self._tokens = self._done = 0
        self._event = None
        if self._read >= self._expected:
            self.finish()

    def finish(self) -> None:
        """Nothing runs any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # it may be about to show the bar
        if self._bar is not None:
            self._bar.stop()
        self._timer = self._bar = self._event = None
        self._expected = self._read = self._tokens = self._done = 0

    def _wait(self, device: torch.device) -> None:
        """Wait for the layer before, so that what is counted has run; this one keeps the device busy meanwhile."""
        event = torch.Event(device)
        event.record(torch.accelerator.current_stream(device))
        if self._event is not None:
            self._event.synchronize()
        self._event = event

    @property
    def _total(self) -> int:
        return max(self._expected, self._read + self._tokens)

    def _now(self) -> float:
        """Tokens that have gone through all layers, parts of tokens counted in."""
        return self._read + self._tokens * self._done / self._layers

    def _show(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f}%"))
        bar = Progress(*columns, _Rate(), _Left(), console=self._console, transient=True)
        bar.add_task("reading", total=self._total, begun=self._begun, at=time.perf_counter())
        self._bar = bar
        self._update()
        bar.start()

    def _update(self) -> None:
        if self._bar is not None:
            task = self._bar.task_ids[0]
            words = f"{self._total:,} tokens, layer {min(self._done + 1, self._layers)} of {self._layers}"
            self._bar.update(task, total=self._total, completed=self._now(), at=time.perf_counter(), description=words)


class _Rate(ProgressColumn):
    """Tokens a second, through all layers."""

    def render(self, task: Task) -> Text:
        spent = task.fields["at"] - task.fields["begun"]
        return Text(f"{task.completed / spent:,.0f} tokens/s" if task.completed else "- tokens/s")


class _Left(ProgressColumn):
    """The time left at this rate."""

    def render(self, task: Task) -> Text:
        if not task.completed or task.total is None:
            return Text("- left")
        spent = task.fields["at"] - task.fields["begun"]
        left = spent * (task.total / task.completed - 1) - (time.perf_counter() - task.fields["at"])
        minutes, seconds = divmod(max(round(left), 0), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left")


def _decoder_and_layers(model: PreTrainedModel) -> tuple[nn.Module, list[nn.Module]]:
    """The module whose forward runs the layers of a text model, and those."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    inside = model.get_decoder() if hasattr(model, "get_decoder") else model
    for module in (inside, model):
        for owner in module.modules():
            for child in owner.children():
                if isinstance(child, nn.ModuleList) and len(child) == count:
                    return owner, list(child)
    raise LongspanError(f"{type(model).__name__}: none of its lists of modules has its {count} layers")
