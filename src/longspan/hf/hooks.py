"""The hooks that carry a method into a model: on its decoder, on its attention modules, and on ``generate``."""

from __future__ import annotations

import inspect
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
from longspan.hf.probe import CACHE_NAMES, Layer, scaling, unrotated
from longspan.hf.report import Report
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
        decoder = _decoder(model, [layer.module for layer in self.layers])
        names = list(inspect.signature(decoder.forward).parameters)

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return (), self._before_decoder(module, {**dict(zip(names, args, strict=False)), **kwargs})

        self._handles.append(decoder.register_forward_pre_hook(before, with_kwargs=True))
        for layer in self.layers:
            self._handles.append(layer.module.register_forward_pre_hook(_LayerHook(layer, self), with_kwargs=True))
            if layer.norms is not None:
                self._handles += [norm.register_forward_hook(_give_input) for norm in layer.norms]
        if hasattr(model, "_prepare_cache_for_generation"):
            self._wrap_generate(model)

    def detach(self, model: PreTrainedModel) -> None:
        """Leave the model as it was before ``attach``."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for name in ("_prepare_cache_for_generation", "_prepare_generated_length"):
            vars(model).pop(name, None)
        model.set_attn_implementation(self.implementation)

    def new_cache(self) -> LongspanCache:
        layers = DynamicCache(config=self._config).layers
        report, method = self.report, self.attender.method
        for layer in self.layers:
            if layer.rope is not None:
                # No method's local tokens reach beyond the window.
                store = KVStore(report.kv_tier, report.kv_dir, window=report.window)
                layers[layer.index] = StoreLayer(store, method.selects)
        return LongspanCache(self._owner, self.attender, layers)

    def _before_decoder(self, decoder: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Check what a forward is given, and give it our cache where it would make one."""
        if decoder.training:
            raise LongspanError("the model is in training mode and longspan is for inference: call model.eval()")
        config = self._config
        if kwargs.get("output_attentions", getattr(config, "output_attentions", False)):
            raise LongspanError("attention weights are never formed here: call without output_attentions")
        mask = kwargs.get("attention_mask")
        if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
            raise LongspanError("pass attention_mask as [batch, tokens]; a prepared mask of another form would be lost")
        _one_run(kwargs.get("position_ids"), mask)
        cache = kwargs.get("past_key_values")
        if cache is not None:
            self.check(cache)
        else:
            use = kwargs.get("use_cache")
            if config.use_cache if use is None else use:
                kwargs["past_key_values"] = self.new_cache()
        return kwargs

    def check(self, cache: Any) -> None:
        """Raise ``CacheError`` unless the cache is one of ours, filled under this method."""
        if not isinstance(cache, LongspanCache):
            raise CacheError(
                f"past_key_values is a {type(cache).__name__}, which an extended model cannot use; leave it out, or "
                "pass longspan.new_cache(model)"
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

    def _wrap_generate(self, model: PreTrainedModel) -> None:
        # Instance attributes that shadow the class's methods; ``detach`` deletes them.
        prepare_cache = model._prepare_cache_for_generation
        prepare_length = model._prepare_generated_length

        def with_our_cache(generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            if model_kwargs.get("past_key_values") is not None:
                self.check(model_kwargs["past_key_values"])
            elif generation_config.cache_implementation not in (None, "dynamic"):
                raise CacheError(
                    f"cache_implementation={generation_config.cache_implementation!r} is not available on an extended "
                    "model, which keeps longspan's own cache; leave it out"
                )
            made = model_kwargs.get("past_key_values") is None
            result = prepare_cache(generation_config, model_kwargs, *args, **kwargs)
            if made and model_kwargs.get("past_key_values") is not None:
                model_kwargs["past_key_values"] = self.new_cache()
                if getattr(generation_config, "is_assistant", False):
                    model_kwargs["past_key_values"].activate_past_recording()
            return result

        def with_long_prompts(generation_config: Any, has_default_max_length: bool, *args: Any, **kwargs: Any) -> Any:
            asked = generation_config.max_length
            done = prepare_length(generation_config, has_default_max_length, *args, **kwargs)
            if has_default_max_length and done.max_new_tokens is None:
                # transformers cuts the default length at max_position_embeddings, which is what is being extended.
                done.max_length = max(done.max_length, asked + kwargs["input_ids_length"])
            return done

        model._prepare_cache_for_generation = with_our_cache
        model._prepare_generated_length = with_long_prompts


class _LayerHook:
    """Before an attention module runs: take its rotation away and send its attention call to ``run``."""

    def __init__(self, layer: Layer, attachment: Attachment) -> None:
        self.layer, self.attender, self.implementation = layer, attachment.attender, attachment.implementation
        self.attachment = attachment

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.layer.rope is None:
            kwargs["longspan"] = self.stock
            return args, kwargs
        cache = next((kwargs[name] for name in CACHE_NAMES if kwargs.get(name) is not None), None)
        kwargs["position_embeddings"] = self.attachment.bare(kwargs["position_embeddings"])

        def run(
            module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, given: dict[str, Any]
        ) -> tuple[Tensor, None]:
            return self.attend(module, q, k, v, mask, given, cache), None

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
    ) -> Tensor:
        """Attention ``[B, T, H, Dv]`` of one attached layer."""
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            # As torch's own attention does: all in the dtype of autocast, and nothing inside it cast again.
            q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
            with torch.autocast(kind, enabled=False):
                return self.attend(module, q, k, v, mask, given, cache)
        if not isinstance(mask, interface.Mask):
            raise LongspanError(f"{self.layer.name}: its mask did not come from longspan; pass a 2D attention_mask")
        if cache is not None and cache.fixed is not None:
            return self._fixed(cache.fixed, cache.layers[self.layer.index].store, module, q, k, v, given)
        if self.attachment.observer is not None:
            self.attachment.observer(self.layer, q, k, v, mask.padding)
        store = None
        if cache is not None:
            store = cache.layers[self.layer.index].store
            cache.accept(mask.padding, mask.given, store.length)
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


def _give_input(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """For a norm that follows the rotation: longspan applies it after its own rotation."""
    return args[0]


def _decoder(model: PreTrainedModel, modules: list[nn.Module]) -> nn.Module:
    """The innermost model that holds all attention modules, whose forward makes the cache and the masks."""
    inside = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    holding = [m for m in inside if set(modules) <= set(m.modules())]
    return holding[-1]


def _one_run(position_ids: Tensor | None, mask: Tensor | None) -> None:
    """Raise if the positions restart inside a row: several sequences packed into one."""
    if position_ids is None or position_ids.shape[-1] < 2 or position_ids.dim() != 2:
        return
    steps = position_ids.diff(dim=-1) != 1
    if mask is not None:
        steps = steps & mask[:, -position_ids.shape[-1] :][:, :-1].bool()
    if bool(steps.any()):
        raise LongspanError(
            "position_ids do not rise by one along a row; longspan numbers the tokens itself and cannot take packed "
            "sequences or positions of your own"
        )
