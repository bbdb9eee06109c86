"""Comparison of an extended model with the stock model: a few tokens with a cache, and one more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.attend import Attender
from longspan.errors import AttachError
from longspan.hf.compare import error_of, run_for_outputs, some_tokens, tolerance
from longspan.hf.hooks import Attachment, decoder_of
from longspan.hf.layer import Layer
from longspan.hf.report import Report
from longspan.methods import Full

_TOKENS = 12
_PADS = 3  # padding that the first of two rows begins with


def hold_to_stock(model: PreTrainedModel, layers: list[Layer]) -> None:
    """Run full attention through longspan's hooks and cache, and the model as it is; raise if they differ.

    A left-padded prompt is read and one token after it, so that cache, masks and positions are all asked for. Each
    attention module is compared by itself and hands on what the stock one gave, so that errors of rounding do not add
    up from layer to layer, nor tip a router over.

    Raises:
        AttachError: a layer differs, or the model does not run on longspan's cache; nothing stays attached.
    """
    names = {layer.module: layer.name for layer in layers}
    decoder = decoder_of(model, list(names))
    stock: dict[nn.Module, list[Tensor]] = {module: [] for module in names}  # what each gave, call by call
    calls: Counter[nn.Module] = Counter()

    def record(module: nn.Module, args: Any, out: Any) -> None:
        stock[module].append(_hidden(out))

    def compare(module: nn.Module, args: Any, out: Any) -> Any:
        """Hold a module to what it gave before, which it gives once more."""
        number = calls[module]
        calls[module] += 1
        before = stock[module][number]
        _same(f"{names[module]} ({type(module).__name__})", _hidden(out), before, number)
        return (before, *out[1:]) if isinstance(out, tuple) else before

    full = Full().resolve(_TOKENS)
    report = Report(type(model).__name__, full, _TOKENS, None, (), (), ())
    with run_for_outputs(model) as implementation:
        # Where its own attention differs from the model's eager one, that is what longspan computes.
        model.set_attn_implementation("eager" if any(layer.note for layer in layers) else implementation)
        try:
            with _hooked(list(names), record):
                last = _read(model, decoder)
        except Exception as error:
            raise AttachError(
                f"{type(model).__name__} does not read a few tokens with a cache: {' '.join(str(error).split())}"
            ) from error
        model.set_attn_implementation(implementation)
        attachment = Attachment(model, Attender(full, _TOKENS), layers, report)
        attachment.attach(model)
        try:
            with _hooked(list(names), compare):
                ours = _read(model, decoder)
        except AttachError:
            raise
        except Exception as error:
            raise AttachError(
                f"{type(model).__name__} does not run on longspan's cache: {' '.join(str(error).split())}"
            ) from error
        finally:
            attachment.detach(model)
    for number, (one, other) in enumerate(zip(ours, last, strict=True)):
        _same(f"{type(model).__name__}: its last hidden states", one, other, number)


def _read(model: PreTrainedModel, decoder: nn.Module) -> list[Tensor]:
    """Last hidden states ``[2, tokens, D]`` of a padded prompt, and of one token after it."""
    ids = some_tokens(model, 2 * _TOKENS).view(2, _TOKENS)
    mask = torch.ones_like(ids)
    mask[0, :_PADS] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0) if "position_ids" in signature(decoder.forward).parameters else None
    outs, past = [], None
    for start, stop in ((0, _TOKENS - 1), (_TOKENS - 1, _TOKENS)):
        more = {} if positions is None else {"position_ids": positions[:, start:stop]}
        out = decoder(
            input_ids=ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=past, use_cache=True, **more
        )
        past = out.past_key_values
        outs.append(out[0])
    return outs


def _hooked(modules: list[nn.Module], hook: Callable[[nn.Module, Any, Any], Any]) -> ExitStack:
    """A forward hook on the modules, for the calls of this thread alone; closing the stack removes it."""
    thread, stack = get_ident(), ExitStack()
    for module in modules:
        handle = module.register_forward_hook(lambda *given: hook(*given) if get_ident() == thread else None)
        stack.enter_context(handle)
    return stack


def _hidden(out: Any) -> Tensor:
    hidden: Tensor = out[0] if isinstance(out, tuple) else out
    return hidden


def _same(what: str, ours: Tensor, stock: Tensor, number: int) -> None:
    """Rows of padding are left out: nobody sees them, and attention to nothing is anything."""
    if ours.shape != stock.shape:
        raise AttachError(f"{what}: of shape {tuple(ours.shape)} with longspan's cache, not {tuple(stock.shape)}")
    if number == 0:
        ours, stock = (torch.cat((x[0, _PADS:], x[1])) for x in (ours, stock))
    where = "one token after a prompt" if number else "a padded prompt"
    if not bool(stock.isfinite().all()):
        raise AttachError(
            f"{what}: over {where}, the stock model's own output is NaN or infinite: weights are damaged, or its dtype "
            f"({stock.dtype}) is too narrow for them"
        )
    difference = error_of(ours, stock)
    if not difference <= tolerance(stock.dtype):
        raise AttachError(
            f"{what}: over {where}, with a cache, it differs from the stock model by {difference:.1e} of its largest "
            "value, so it stores or attends to state that longspan does not support"
        )
