"""The hooks that carry a method into a model: on its decoder and on its attention modules."""

from __future__ import annotations

import inspect
import threading
import weakref
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from longspan.attend import Attender, FixedStep
from longspan.calibration import same_maps
from longspan.errors import CacheError, LongspanError
from longspan.hf import interface
from longspan.hf.cache import LongspanCache, StoreLayer
from longspan.hf.generation import shadow, unshadow
from longspan.hf.probe import CACHE_NAMES, Layer, scaling, unrotated
from longspan.hf.report import Report
from longspan.hf.rotary import watched
from longspan.hf.running import (
    NeverCopied,
    Running,
    refuse_inputs,
    refuse_missing,
    refuse_other_attention,
    refuse_packed,
)
from longspan.hf.threads import calls_of
from longspan.hf.untraced import untraced
from longspan.store import KVStore


class Observer(Protocol):
    """Sees what reaches the attention of an attached layer, before anything is done to it.

    Queries ``[B, H, T, D]``, keys ``[B, Hkv, T, D]`` and values ``[B, Hkv, T, Dv]`` are unrotated; ``padding`` is the
    number of padding tokens that each row begins with, those in the cache counted in.
    """

    def __call__(self, layer: Layer, q: Tensor, k: Tensor, v: Tensor, padding: tuple[int, ...]) -> None: ...


class Attachment:
    """One method for one model, which it does not hold, so that the model can be freed while it is extended."""

    def __init__(self, model: PreTrainedModel, attender: Attender, layers: list[Layer], report: Report) -> None:
        self.attender, self.layers, self.report = attender, layers, report
        self._owner = weakref.ref(model)
        self.implementation = model.config._attn_implementation
        self._config = model.config.get_text_config(decoder=True)
        self._handles: list[Any] = []
        self._indices = sorted(layer.index for layer in layers if layer.rope is not None)
        self._local = threading.local()
        self._taking = threading.Lock()  # a cache is taken by one forward at a time
        # Of now and not of ``attach``: what was attached before is attached once more after another's block.
        self._rotary = watched(model, [layer.rope.table for layer in layers if layer.rope is not None])
        self._generates = model.can_generate()
        self.observer: Observer | None = None
        self._bare: tuple[Any, Any] = (lambda: None, None)

    def bare(self, position_embeddings: Any) -> Any:
        """``unrotated``, made once for all layers that are given the same tensors."""
        first = position_embeddings if isinstance(position_embeddings, Tensor) else position_embeddings[0]
        made_for, bare = self._bare
        if made_for() is not first:
            bare = unrotated(position_embeddings)
            self._bare = weakref.ref(first), bare
        return bare

    def attach(self, model: PreTrainedModel) -> None:
        """Put the method on the model; everything that can fail was tried in the probe."""
        interface.register()
        model.set_attn_implementation(interface.NAME)
        decoder = decoder_of(model, [layer.module for layer in self.layers])
        self._handles.append(decoder.register_forward_pre_hook(_Begin(self, decoder), with_kwargs=True))
        self._handles.append(decoder.register_forward_hook(_End(self), always_call=True))
        if decoder is not model:
            self._handles.append(model.register_forward_pre_hook(_Enter(self)))
            self._handles.append(model.register_forward_hook(_Leave(self)))
        for layer in self.layers:
            self._handles.append(layer.module.register_forward_pre_hook(_LayerHook(layer, self), with_kwargs=True))
            if layer.norms is not None:
                self._handles += [norm.register_forward_hook(_GiveInput(self)) for norm in layer.norms]
        shadow(model, self)

    def detach(self, model: PreTrainedModel) -> None:
        """Leave the model as it was before ``attach``."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        unshadow(model)
        model.set_attn_implementation(self.implementation)

    def new_cache(self) -> LongspanCache:
        layers = DynamicCache(config=self._config).layers
        report, method = self.report, self.attender.method
        for layer in self.layers:
            if layer.rope is not None and layer.index < len(layers):  # an early exit has no later ones
                # No method's local tokens reach beyond the window.
                store = KVStore(report.kv_tier, report.kv_dir, window=report.window)
                layers[layer.index] = StoreLayer(store, method.selects)
        return LongspanCache(self._owner, self.attender, layers)

    def begin(self, decoder: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Check what a forward is given, and give it our cache where it would make one."""
        config: Any = decoder.config
        mask, expected = kwargs.get("attention_mask"), self._expected(config)
        running = Running(config, kwargs.get("position_ids"), mask, expected, None)
        self._begun(running, decoder)  # first of all: the hook after the forward ends it, whatever is raised here
        if decoder.training:
            raise LongspanError("the model is in training mode and longspan is for inference: call model.eval()")
        refuse_other_attention(config._attn_implementation, interface.NAME)
        refuse_packed(kwargs)
        refuse_inputs(kwargs)
        if kwargs.get("output_attentions", getattr(config, "output_attentions", False)):
            raise LongspanError("attention weights are never formed here: call without output_attentions")
        self._refuse_other_positions()
        if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
            raise LongspanError("pass attention_mask as [batch, tokens]; a prepared mask of another form would be lost")
        cache = kwargs.get("past_key_values")
        if cache is not None:
            self.check(cache)
            self._take(cache, running, decoder)
            cache.refuse_uneven(len(expected))
        else:
            use = kwargs.get("use_cache")
            if config.use_cache if use is None else use:
                cache = kwargs["past_key_values"] = self.new_cache()
                self._take(cache, running, decoder)
        return kwargs

    def _begun(self, running: Running, decoder: nn.Module) -> None:
        outer = self.running
        # One that an interrupt broke off is still there too, and would keep its cache.
        if outer is not None and calls_of(decoder, outer.thread) > 1:
            running.outer = outer
        self._local.running = running
        self._local.began = True

    def _take(self, cache: LongspanCache, running: Running, decoder: nn.Module) -> None:
        with self._taking:
            other = cache.running
            if other is not None and calls_of(decoder, other.thread) > (other.thread == running.thread):
                raise CacheError(
                    "another forward is filling this cache; give each thread, and each call inside of another, its own "
                    "longspan.new_cache(model)"
                )
            cache.running, running.cache = running, cache

    def end(self, failed: bool) -> None:
        """Raise if a layer that is attached to did not run what is attached, unless the forward failed anyway."""
        running = self.running
        if running is None:
            return
        self._local.running = running.outer
        if running.cache is not None and running.cache.running is running:
            running.cache.running = None
        if not failed:
            refuse_missing(running.attended, running.expected)

    @property
    def running(self) -> Running | None:
        """The forward that this thread is in."""
        return getattr(self._local, "running", None)

    def enter(self) -> None:
        """Before the model runs: its decoder has yet to."""
        self._local.began = False

    def stood_in(self) -> None:
        """A recorded step runs in place of the decoder."""
        self._refuse_other_positions()
        self._local.began = True

    def leave(self) -> None:
        """Raise if the model ran without its decoder."""
        if not getattr(self._local, "began", True):
            raise LongspanError(
                "longspan did not run in this forward: the model's decoder was replaced after longspan.extend; call "
                "longspan.restore(model) and extend it again"
            )

    def _refuse_other_positions(self) -> None:
        for one in self._rotary:
            one.check()

    def _expected(self, config: Any) -> list[int]:
        """The attached layers that a forward runs; an early exit leaves out the last ones."""
        depth = getattr(config, "num_hidden_layers", None)
        if depth is None or not self._indices or depth > self._indices[-1]:
            return self._indices
        return [index for index in self._indices if index < depth]

    def check(self, cache: Any) -> None:
        """Raise ``CacheError`` unless the cache is one of ours, filled under this method."""
        if not isinstance(cache, LongspanCache):
            raise CacheError(
                f"past_key_values is a {type(cache).__name__}, which an extended model cannot use; leave it out, or "
                "pass longspan.new_cache(model)"
                + ("" if self._generates else "; the decoder alone was extended: for generate extend the whole model")
            )
        if cache.owner() is not self._owner():
            raise CacheError("the cache was filled by another model; pass longspan.new_cache(model)")
        ours = cache.attender
        if ours is self.attender:
            return
        if (ours.method, ours.window) != (self.attender.method, self.attender.window):
            raise CacheError(
                f"the cache was filled under {ours.method} and the model now runs {self.attender.method}; "
                "pass longspan.new_cache(model)"
            )
        if not same_maps(ours.calibration, self.attender.calibration):
            raise CacheError(
                "the cache was filled under another calibration than the model now runs; pass longspan.new_cache(model)"
            )


class _Begin(NeverCopied):
    """Before the decoder runs."""

    def __init__(self, attachment: Attachment, decoder: nn.Module) -> None:
        self._attachment, self._names = attachment, list(inspect.signature(decoder.forward).parameters)

    @untraced
    def __call__(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (), self._attachment.begin(decoder, {**dict(zip(self._names, args, strict=False)), **kwargs})


class _End(NeverCopied):
    """After the decoder ran, or failed; then there is no output."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    @untraced
    def __call__(self, decoder: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._attachment.end(failed=output is None)


class _Enter(NeverCopied):
    """Before the model around the decoder runs."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    @untraced
    def __call__(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        self._attachment.enter()


class _Leave(NeverCopied):
    """After it ran."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    @untraced
    def __call__(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._attachment.leave()


class _LayerHook(NeverCopied):
    """Before an attention module runs: take its rotation away and send its attention call to ``run``."""

    def __init__(self, layer: Layer, attachment: Attachment) -> None:
        self.layer, self.attender, self.implementation = layer, attachment.attender, attachment.implementation
        self.attachment = attachment

    @untraced
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.layer.rope is None:
            kwargs["longspan"] = self.stock
            return args, kwargs
        running = self._running(module)
        cache = next((kwargs[name] for name in CACHE_NAMES if kwargs.get(name) is not None), None)
        kwargs["position_embeddings"] = self.attachment.bare(kwargs["position_embeddings"])

        def run(
            module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, given: dict[str, Any]
        ) -> tuple[Tensor, None]:
            return self.attend(module, q, k, v, mask, given, cache, running), None

        kwargs["longspan"] = run
        return args, kwargs

    def stock(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        return interface.stock_attention(self.implementation, module, q, k, v, mask, given)

    def attend(
        self,
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Any,
        given: dict[str, Any],
        cache: LongspanCache | None,
        running: Running,
    ) -> Tensor:
        """Attention ``[B, T, H, Dv]`` of one attached layer."""
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            # As torch's own attention does: all in the dtype of autocast, and nothing inside it cast again.
            q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
            with torch.autocast(kind, enabled=False):
                return self.attend(module, q, k, v, mask, given, cache, running)
        if not isinstance(mask, interface.Mask):
            raise LongspanError(f"{self.layer.name}: its mask did not come from longspan; pass a 2D attention_mask")
        self._refuse_strange(running, cache)
        running.attended.append(self.layer.index)
        if cache is not None and cache.fixed is not None:
            return self._fixed(cache.fixed, cache.layers[self.layer.index].store, module, q, k, v, given)
        if self.attachment.observer is not None:
            self.attachment.observer(self.layer, q, k, v, mask.padding)
        store = None
        if cache is not None:
            store = cache.layers[self.layer.index].store
            cache.accept(mask.padding, mask.given, store.length)
        if running.positions is not None:
            running.compare(mask.padding, 0 if store is None else store.length, v.shape[2])
        assert self.layer.rope is not None
        # Entering takes longer than the rest of a hook, and generation is inside already.
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            out = self.attender(
                q,
                k,
                v,
                self.layer.rope,
                scale=scaling(module, given),
                store=store,
                padding=mask.padding,
                softcap=given.get("softcap"),
                sinks=given.get("s_aux"),
                layer=self.layer.index,
                state=mask.state,
            )
        return interface.inference_only(out.transpose(1, 2).contiguous(), q)

    def _running(self, module: nn.Module) -> Running:
        """The forward that this layer is part of, begun by the decoder's hook."""
        running = self.attachment.running
        if running is None:
            raise LongspanError(
                f"{self.layer.name}: longspan's hook on the model around it did not run; call the model and not its "
                "forward, and where hooks were removed call longspan.restore(model) and extend it again"
            )
        config: Any = getattr(module, "config", None)
        if config is not running.config and config is not None:
            refuse_other_attention(config._attn_implementation, interface.NAME)
        return running

    def _refuse_strange(self, running: Running, cache: LongspanCache | None) -> None:
        """Raise if the layer was given another cache than the decoder, or lost the hooks on its norms."""
        if running.cache is not cache:
            raise LongspanError(
                f"{self.layer.name} was given another cache than the model ({type(cache).__name__}); pass "
                "past_key_values to the model, and longspan.new_cache(model) where it is to be kept"
            )
        if self.layer.norms is not None:
            if running.norms != 2:
                raise LongspanError(
                    f"{self.layer.name}: longspan's hooks on its norms were removed; call longspan.restore(model) and "
                    "extend it again"
                )
            running.norms = 0

    def _fixed(
        self, step: FixedStep, store: KVStore, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]
    ) -> Tensor:
        """The same for one token in the form that is recorded; whoever records has checked padding and cache."""
        assert self.layer.rope is not None
        out = step(
            q,
            k,
            v,
            self.layer.rope,
            scale=scaling(module, given),
            store=store,
            softcap=given.get("softcap"),
            sinks=given.get("s_aux"),
        )
        return out.transpose(1, 2).contiguous()


class _GiveInput(NeverCopied):
    """For a norm that follows the rotation: longspan applies it after its own rotation."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    @untraced
    def __call__(self, norm: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        running = self._attachment.running
        if running is not None:
            running.norms += 1
        return args[0]


def decoder_of(model: PreTrainedModel, modules: list[nn.Module]) -> nn.Module:
    """The innermost model that holds all attention modules, whose forward makes the cache and the masks."""
    inside = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    holding = [m for m in inside if set(modules) <= set(m.modules())]
    return holding[-1]
