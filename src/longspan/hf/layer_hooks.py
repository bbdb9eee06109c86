"""The hook on attention modules: it takes its layer's rotation away and runs the method in its attention call."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from longspan.attend import Attender, LayerCall
from longspan.errors import LongspanError
from longspan.hf import interface
from longspan.hf.cache import LongspanCache
from longspan.hf.layer import Layer, scaling
from longspan.hf.running import Forward, NeverCopied, refuse_other_attention
from longspan.hf.untraced import untraced
from longspan.rope import Rope


class InputObserver(Protocol):
    """Sees what reaches the attention of an attached layer, before anything is done to it.

    Queries ``[B, H, T, D]``, keys ``[B, Hkv, T, D]`` and values ``[B, Hkv, T, Dv]`` are unrotated; ``padding`` is the
    number of padding tokens that each row begins with, those in the cache counted in.
    """

    def __call__(self, layer: Layer, q: Tensor, k: Tensor, v: Tensor, padding: tuple[int, ...]) -> None: ...


class Attached(Protocol):
    """What a layer's hook asks of the attachment that it belongs to; see ``longspan.hf.hooks.Attachment``."""

    attender: Attender
    implementation: str
    observer: InputObserver | None

    @property
    def running(self) -> Forward | None: ...


class LayerHook(NeverCopied):
    """Before an attention module runs: take its rotation away and send its attention call to ``run``."""

    def __init__(self, layer: Layer, attachment: Attached) -> None:
        self.layer, self.attender, self.attachment = layer, attachment.attender, attachment
        self._stock = partial(interface.stock_attention, attachment.implementation)

    @untraced
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.layer.rope is None:
            kwargs["longspan"] = self._stock
            return args, kwargs
        running = self._running(module)
        cache = kwargs.get("past_key_values")
        if cache is None:
            cache = kwargs.get("layer_past")  # as the modules of GPT-NeoX and others name it
        kwargs["position_embeddings"] = running.bare(kwargs["position_embeddings"])
        kwargs["longspan"] = partial(self.attend, cache, running)
        return args, kwargs

    def attend(
        self,
        cache: LongspanCache | None,
        running: Forward,
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Any,
        kwargs: dict[str, Any],
    ) -> tuple[Tensor, None]:
        """Attention of one attached layer, as transformers' attention functions return it.

        Args:
            q, k, v: ``[B, H, T, D]``, ``[B, Hkv, T, D]``, ``[B, Hkv, T, Dv]``, unrotated.

        Returns:
            ``[B, T, H, Dv]``, and no weights.
        """
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            # As torch's own attention does: all in the dtype of autocast, and nothing inside it cast again.
            q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
            with torch.autocast(kind, enabled=False):
                return self.attend(cache, running, module, q, k, v, mask, kwargs)
        if not isinstance(mask, interface.Mask):
            name = self.layer.name
            raise LongspanError(f"{name} received a mask that longspan did not create; pass a 2D attention_mask")
        if running.cache is not cache or self.layer.norms is not None:
            self._refuse_strange(running, cache)
        running.attended.append(self.layer.index)
        store, step, padding = None, None, mask.padding
        if cache is not None:
            store, step = cache.layers[self.layer.index].store, cache.recorded
        call = LayerCall(
            cast(Rope, self.layer.rope),
            scaling(module, kwargs),
            padding,
            kwargs.get("softcap"),
            kwargs.get("s_aux"),
            self.layer.index,
            mask.state,
        )
        if step is not None and store is not None:  # whoever records has checked padding and cache
            return step(q, k, v, call, store).contiguous(), None
        if self.attachment.observer is not None:
            self.attachment.observer(self.layer, q, k, v, padding)
        if cache is not None and padding != cache.padding:
            cache.accept(padding, mask.given, cache.layers[self.layer.index].store.length)
        if running.positions is not None:
            running.compare(padding, 0 if store is None else store.length, v.shape[2])
        if not torch.is_grad_enabled():
            return self.attender.run(q, k, v, call, store).contiguous(), None
        with torch.no_grad():
            out = self.attender.run(q, k, v, call, store).contiguous()
        return interface.inference_only(out, q), None

    def _running(self, module: nn.Module) -> Forward:
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

    def _refuse_strange(self, running: Forward, cache: LongspanCache | None) -> None:
        """Raise if the layer was given another cache than the decoder, or lost the hooks on its norms."""
        if running.cache is not cache:
            raise LongspanError(
                f"{self.layer.name} received a different cache than the model ({type(cache).__name__}); pass "
                "past_key_values to the model, and longspan.new_cache(model) where it is to be kept"
            )
        if self.layer.norms is not None:
            if running.norms != 2:
                raise LongspanError(
                    f"{self.layer.name}: longspan's hooks on its norms were removed; call longspan.restore(model) and "
                    "extend it again"
                )
            running.norms = 0
