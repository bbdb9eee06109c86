"""Comparison of an extended model with the stock model: a few tokens alone, a few with a cache, and one more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.attend import Attender
from longspan.errors import AttachError
from longspan.hf.argument import CACHE_ARGUMENT, put_cache
from longspan.hf.hooks import Attachment
from longspan.hf.probe.compare import error_of, failing_as, run_for_outputs, some_tokens, tolerance
from longspan.kernels.dispatch import Impl
from longspan.methods import Full
from longspan.model.layer import Layer
from longspan.model.report import Report
from longspan.model.unwrap import decoder_of
from longspan.weights.modules import unrounded

_TOKENS = 12
_PADS = 3  # padding that the first of two rows begins with
_FAR_ABOVE = 8  # times a model's own noise that it may differ by: other roundings are as many, at other places
_LEAST_ALLOWED, _MOST_ALLOWED = 1e-4, 0.01  # less is no rounding of activations; more may be another attention


def hold_to_stock(model: PreTrainedModel, layers: list[Layer], impl: Impl) -> str | None:
    """Run full attention through longspan's hooks and cache, and the model as it is; raise if they differ.

    A prompt is read without a mask, then a left-padded one with a cache and one token after it, so that cache, masks
    and positions are all asked for. Each attention module is compared by itself and hands on what the stock one gave,
    so that errors of rounding do not add up from layer to layer, nor tip a router over.

    Returns:
        A note for users if longspan equals the model's eager attention, but not the one that the model uses.

    Raises:
        AttachError: a layer differs, or the model does not run on longspan's cache or with ``impl``; nothing stays
            attached.
    """
    with run_for_outputs(model) as implementation, unrounded(model):
        try:
            _compare(model, layers, impl, implementation, implementation)
        except AttachError:
            # Some versions of transformers drop a softcap under sdpa; the model file's eager attention has the last
            # word.
            with suppress(AttachError):
                _compare(model, layers, impl, implementation, "eager")
                return (
                    f"transformers' {implementation!r} attention differs from the model's eager one in some layers "
                    "(a softcap it leaves out, for example); longspan computes what eager does"
                )
            if model.dtype != torch.float32:  # else a change in the last digit is itself as large as a wrong attention
                raise
            largest = _noise(model, layers)
            allowed = min(_FAR_ABOVE * largest, _MOST_ALLOWED)
            if allowed <= _LEAST_ALLOWED:
                raise
            _compare(model, layers, impl, implementation, implementation, allowed)
            return (
                "the model rounds activations, as int8 quantisation does: if the inputs of its attention layers change "
                f"in their last digit, the outputs change by {largest:.1e} of the largest entry, and longspan's differ "
                f"by no more than {allowed:.1e}"
            )
    return None


def _noise(model: PreTrainedModel, layers: list[Layer]) -> float:
    """How far the stock attention modules' outputs move if their inputs change by roundings, over the largest entry.

    In a module that rounds activations to a few levels some of them fall to another one, which is a large step.
    """
    names = {layer.module: layer.name for layer in layers}
    stock: dict[nn.Module, list[Tensor]] = {module: [] for module in names}
    found = [0.0]

    def record(module: nn.Module, args: Any, out: Any) -> None:
        stock[module].append(_hidden(out))

    def shake(module: nn.Module, args: Any, kwargs: Any) -> Any:
        shaken = [_shaken(x) for x in args], {name: _shaken(x) for name, x in kwargs.items() if name == "hidden_states"}
        return tuple(shaken[0]), kwargs | shaken[1]

    def compare(module: nn.Module, args: Any, out: Any) -> Any:
        before = stock[module].pop(0)
        found.append(error_of(_hidden(out), before))
        return (before, *out[1:]) if isinstance(out, tuple) else before

    decoder = decoder_of(model, list(names))
    with _hooked(names, record):
        _read(model, decoder)
    with _hooked(names, compare) as stack:
        for module in names:
            stack.callback(module.register_forward_pre_hook(shake, with_kwargs=True).remove)
        _read(model, decoder)
    return max(found)


def _shaken(x: Any) -> Any:
    """A tensor of numbers with every other one larger by a rounding; anything else as it is."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    signs = torch.arange(x.numel(), device=x.device).view(x.shape) % 2
    return x * (1 + 2 * torch.finfo(x.dtype).eps * signs.to(x.dtype))


def _compare(
    model: PreTrainedModel,
    layers: list[Layer],
    impl: Impl,
    implementation: str,
    stock_implementation: str,
    allowed: float = 0.0,
) -> None:
    """Raise unless the model does the same with longspan's attention as with the stock one of this name.

    Args:
        allowed: how far an attention module may differ, over its largest entry, if that is more than roundings.
    """
    names = {layer.module: layer.name for layer in layers}
    decoder = decoder_of(model, list(names))
    stock: dict[nn.Module, list[Tensor]] = {module: [] for module in names}  # what each gave, call by call

    def record(module: nn.Module, args: Any, out: Any) -> None:
        stock[module].append(_hidden(out))

    def compare(module: nn.Module, args: Any, out: Any) -> Any:
        """Hold a module to what it gave before, which it gives once more."""
        before = stock[module].pop(0)
        _same(f"{names[module]} ({type(module).__name__})", _hidden(out), before, allowed)
        return (before, *out[1:]) if isinstance(out, tuple) else before

    full = Full().resolve(_TOKENS)
    kind, where = type(model).__name__, "on longspan's cache" if impl == "auto" else f"with impl={impl!r}"
    report = Report(kind, full, _TOKENS, None, (), (), ())
    with _hooked(names, record), failing_as(f"{kind} does not read a few tokens with a cache"):
        model.set_attn_implementation(stock_implementation)
        last = _read(model, decoder)
    model.set_attn_implementation(implementation)
    attachment = Attachment(model, Attender(full, _TOKENS, impl), layers, report)
    attachment.attach(model)
    try:
        with _hooked(names, compare), failing_as(f"{kind} does not run {where}"):
            ours = _read(model, decoder)
    finally:
        attachment.detach(model)
    for one, other in zip(ours, last, strict=True):
        _same(f"{kind}: its last hidden states", one, other)


def _read(model: PreTrainedModel, decoder: nn.Module) -> list[Tensor]:
    """Last hidden states ``[1, tokens, D]`` of a prompt, ``[2, tokens, D]`` of a padded one and of a token after it."""
    ids = some_tokens(model, 2 * _TOKENS)
    # By way of the model around the decoder, which may make its masks.
    alone = model.base_model(input_ids=ids[None], use_cache=False)[0]
    ids = ids.view(2, _TOKENS)
    mask = torch.ones_like(ids)
    mask[0, :_PADS] = 0
    names = signature(decoder.forward).parameters
    positions = (mask.cumsum(-1) - 1).clamp(min=0) if "position_ids" in names else None
    outs, past = [alone], None
    for start, stop in ((0, _TOKENS - 1), (_TOKENS - 1, _TOKENS)):
        more: dict[str, Any] = {} if positions is None else {"position_ids": positions[:, start:stop]}
        put_cache(more, past, names)
        out = decoder(input_ids=ids[:, start:stop], attention_mask=mask[:, :stop], use_cache=True, **more)
        past = getattr(out, CACHE_ARGUMENT)
        outs.append(out[0])
    return outs


def _hooked(modules: Iterable[nn.Module], hook: Callable[[nn.Module, Any, Any], Any]) -> ExitStack:
    """A forward hook on the modules, which no other thread runs meanwhile; closing the stack removes it."""
    stack = ExitStack()
    for module in modules:
        stack.enter_context(module.register_forward_hook(hook))
    return stack


def _hidden(out: Any) -> Tensor:
    hidden: Tensor = out[0] if isinstance(out, tuple) else out
    return hidden


def _same(what: str, ours: Tensor, stock: Tensor, allowed: float = 0.0) -> None:
    """Raise unless they differ by roundings, or by what is ``allowed``, at most.

    Rows of padding are left out: their output is not read, and attention to no key has no value.
    """
    if ours.shape != stock.shape:
        raise AttachError(f"{what}: of shape {tuple(ours.shape)} with longspan's cache, not {tuple(stock.shape)}")
    where = "one token after a prompt, with a cache"
    if len(ours) == 1:
        where = "a prompt without padding"
    elif ours.shape[1] > 1:
        ours, stock = (torch.cat((x[0, _PADS:], x[1])) for x in (ours, stock))
        where = "a padded prompt, with a cache"
    if not bool(stock.isfinite().all()):
        raise AttachError(
            f"{what}: over {where}, the stock model's own output is NaN or infinite: weights are damaged, or its dtype "
            f"({stock.dtype}) is too narrow for them"
        )
    difference = error_of(ours, stock)
    if not difference <= max(tolerance(stock.dtype), allowed):
        raise AttachError(
            f"{what}: over {where}, it differs from the stock model by {difference:.1e} of its largest value, so its "
            "attention is no softmax over scaled products, or it stores or attends to state that longspan does not "
            "support"
        )
