"""One method attached to a model, and its hooks: on the model, its decoder, its attention modules and their norms."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from longspan.attend import Attender, LayerCall
from longspan.calibration import same_maps
from longspan.errors import CacheError, LongspanError
from longspan.hf import interface
from longspan.hf.argument import CACHE_ARGUMENT, given_cache, named_here, put_cache
from longspan.hf.cache import LongspanCache, StoreLayer
from longspan.hf.calls import compute, each_guess_alone
from longspan.hf.drafting import Drafting
from longspan.hf.forward import (
    Forward,
    InputObserver,
    NeverCopied,
    StoredRun,
    ThreadState,
    finish,
    refuse_inputs,
    refuse_other_attention,
    refuse_strange,
)
from longspan.hf.joined import JoinedCache, members_of, release, take, unjoinable
from longspan.hf.position_ids import by_token
from longspan.hf.probe.frequencies import watched
from longspan.hf.stock import stock_layers
from longspan.hf.threads import calls_of
from longspan.hf.tiers import new_store
from longspan.hf.token_layers import KEPT, replace_forwards
from longspan.hf.untraced import untraced
from longspan.model.layer import Layer, scaling
from longspan.model.report import Report
from longspan.model.unwrap import decoder_of
from longspan.rope import Rope


class Attachment(NeverCopied):
    """One method for one model, which it does not hold, so that the model can be freed while it is extended."""

    def __init__(self, model: PreTrainedModel, attender: Attender, layers: list[Layer], report: Report) -> None:
        self.attender, self.layers, self.report = attender, layers, report
        self._owner = weakref.ref(model)
        self.implementation = model.config._attn_implementation
        self._stock = partial(interface.stock_attention, self.implementation)
        self._config = model.config.get_text_config(decoder=True)
        self._handles: list[Any] = []
        self._decoder: Callable[[], nn.Module | None] = lambda: None
        self._names: list[str] = []  # of what the decoder's forward takes
        self._numbers = False  # whether tokens whose positions were left out are numbered for it
        self._indices = sorted(layer.index for layer in layers if layer.rope is not None)
        # Whether some layers are the model's own, be they stock attention or of another kind.
        self._mixed = len(self._indices) < (getattr(self._config, "num_hidden_layers", None) or 0)
        self.thread, self._taking = ThreadState(), threading.Lock()  # a cache is taken by one forward at a time
        # Of now and not of ``attach``: what was attached before is attached once more after another's block.
        self._rotary = watched(model, [layer.rope.table for layer in layers if layer.rope is not None])
        self._generates = model.can_generate()
        self.observer: InputObserver | None = None
        self.drafting: Drafting | None = None

    def attach(self, model: PreTrainedModel) -> None:
        """Put the method on the model; everything that can fail was tried in the probe."""
        model.set_attn_implementation(interface.NAME)
        self._handles += replace_forwards(model, self)
        decoder = decoder_of(model, [layer.module for layer in self.layers])
        self._decoder = weakref.ref(decoder)
        self._names = list(inspect.signature(decoder.forward).parameters)
        # Stock layers rotate by position_ids, which count padding if they are left out; generate's do not.
        self._numbers = "position_ids" in self._names and any(layer.rope is None for layer in self.layers)
        self._handles.append(decoder.register_forward_pre_hook(self.begin, with_kwargs=True))
        self._handles.append(decoder.register_forward_hook(self.end, always_call=True))
        if decoder is not model:
            self._handles.append(model.register_forward_pre_hook(self.enter, with_kwargs=True))
            self._handles.append(model.register_forward_hook(self.leave, always_call=True))
        for layer in self.layers:
            before = partial(self.begin_layer, layer)
            self._handles.append(layer.module.register_forward_pre_hook(before, with_kwargs=True))
            for norm in layer.norms or ():
                self._handles.append(norm.register_forward_hook(self.give_input))

    def detach(self, model: PreTrainedModel) -> None:
        """Leave the model as it was before ``attach``."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        model.set_attn_implementation(self.implementation)

    def unjoinable(self) -> str | None:
        """The reason why no forward of the model takes in tokens of several caches (``JoinedCache``), or None."""
        return unjoinable(self.new_cache(), self._names)

    def new_cache(self) -> LongspanCache:
        layers = stock_layers(self._config, {layer.index for layer in self.layers})
        report, method = self.report, self.attender.method
        for layer in self.layers:
            if layer.rope is not None and layer.index < len(layers):  # an early exit has no later ones
                # No method's local tokens reach beyond the window.
                store = new_store(report.kv_tier, report.kv_dir, report.window)
                layers[layer.index] = StoreLayer(store, method.selects)
        return LongspanCache(self._owner, self.attender, layers)

    @untraced
    def begin(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the decoder runs: check its arguments, and pass our cache if it would make its own."""
        kwargs = dict(zip(self._names, args, strict=False)) | kwargs
        config: Any = decoder.config
        mask, expected = kwargs.get("attention_mask"), self._expected(config)
        running = Forward(config, kwargs.get("position_ids"), mask, expected, self.thread.run)
        uncached = self.thread.uncached
        self._begun(running, decoder)  # first of all: the hook after the forward ends it, whatever is raised here
        if decoder.training:
            raise LongspanError("the model is in training mode, but longspan is for inference: call model.eval()")
        refuse_other_attention(config._attn_implementation, interface.NAME)
        refuse_inputs(named_here(kwargs))
        if "logits_to_keep" in self._names and cast(Any, decoder).get_output_embeddings() is None:
            kwargs["logits_to_keep"] = 0  # Gemma 4 gives layers that share keys the last tokens alone: no keys to store
        own = "output_attentions" in kwargs  # a look into a config takes several calls
        if kwargs["output_attentions"] if own else getattr(config, "output_attentions", False):
            raise LongspanError("longspan never forms attention weights: call without output_attentions")
        for one in self._rotary:
            one.check()
        if isinstance(mask, dict) and all(isinstance(one, interface.Mask) for one in mask.values()):
            # A model around the decoder, such as Gemma 3 with images, made them by longspan's own function.
            mask = running.mask = next(iter(mask.values())).given
        if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
            raise LongspanError("pass attention_mask as [batch, tokens]; a prepared mask of another form would be lost")
        ids = kwargs.get("input_ids")
        tokens: Tensor = kwargs["inputs_embeds"] if ids is None else ids
        if mask is not None and tokens.shape[1] > 1:  # a token that comes alone waits for no look at the mask
            interface.refuse_right_padding(mask, self.attender.method)
        cache, use = given_cache(kwargs), kwargs.get("use_cache")
        if uncached and isinstance(cache, DynamicCache) and not cache.get_seq_length():
            cache = None  # an empty one, as of SmolVLM's model around the decoder, if the caller passed none
        if cache is not None:
            for one in members_of(cache):
                self.check(one)
        elif config.use_cache if use is None else use:
            cache = self.new_cache()
        if cache is not None:
            put_cache(kwargs, cache, self._names)
            with self._taking:
                take(cache, running, decoder)
            cache.refuse_uneven(getattr(config, "num_hidden_layers", None))
            if isinstance(cache, JoinedCache):
                cache.give_positions(kwargs, tokens, self._names)
            else:
                running.guesses = cache.calls.begin(self, cache, kwargs, tokens.shape[1])
                if self._mixed and running.run is None:
                    self._check_before(cache, running, kwargs, *tokens.shape[:2])
        running.fits = True
        return (), kwargs

    def _begun(self, running: Forward, decoder: nn.Module) -> None:
        outer = self.running  # one that an interrupt broke off is still there too, and would keep its cache
        if outer is not None and calls_of(decoder, outer.thread) > 1:
            running.outer = outer
        self.thread.running, self.thread.began, self.thread.uncached = running, True, False

    def _check_before(
        self, cache: LongspanCache, running: Forward, kwargs: dict[str, Any], rows: int, tokens: int
    ) -> None:
        """Raise what an attached layer would, before a stock layer takes tokens in that it may not drop again."""
        mask, past = running.mask, cache.get_seq_length()
        padding = interface.left_padding(mask, rows, past + tokens)
        cache.refuse_padding(padding, mask is not None, past)
        if self._numbers and running.positions is None and mask is not None and cache.numbering != "slots":
            running.positions = kwargs["position_ids"] = by_token(mask, tokens)
        if running.positions is not None:
            running.compare(padding, past, tokens)

    def again(self, cache: LongspanCache) -> Callable[[dict[str, Tensor], tuple[int, ...]], None]:
        """``compute`` of tokens that this cache held, of inputs ``[B, T, ...]``.

        Raises:
            CacheError: the model is not extended, or not as it was.
        """
        decoder = self._decoder()
        if decoder is None or not self._handles or decoder.training:
            raise CacheError("tokens cannot be computed again, since the model is not extended or is in training mode")
        self.check(cache)
        return partial(compute, decoder, self._names, cache)

    @untraced
    def begin_layer(self, layer: Layer, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before an attention module runs: take its rotation away and send its attention call to ``attend``."""
        if layer.rope is None:
            kwargs["longspan"] = self._stock
            return args, kwargs
        running = self.running  # begun by the decoder's hook
        if running is None:
            raise LongspanError(
                f"{layer.name}: longspan's hook on the model around it did not run; call the model and not its "
                "forward; if hooks were removed, call longspan.restore(model) and extend it again"
            )
        config: Any = getattr(module, "config", None)
        if config is not running.config and config is not None:
            refuse_other_attention(config._attn_implementation, interface.NAME)
        cache = given_cache(kwargs)
        if cache is None:  # modules of GPT-NeoX and others have a name of their own
            cache = kwargs.get("layer_past")
        kwargs["position_embeddings"] = running.bare(kwargs["position_embeddings"])
        kwargs["longspan"] = partial(self.attend, layer, cache, running)
        return args, kwargs

    def attend(
        self,
        layer: Layer,
        cache: LongspanCache | JoinedCache | None,
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
        if torch.is_autocast_enabled(kind):  # as torch's own attention does: all in its dtype, and nothing cast again
            q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
            with torch.autocast(kind, enabled=False):
                return self.attend(layer, cache, running, module, q, k, v, mask, kwargs)
        if not isinstance(mask, interface.Mask):
            raise LongspanError(f"{layer.name} received a mask that is not longspan's; pass a 2D attention_mask")
        if running.cache is not cache or layer.norms is not None:
            refuse_strange(layer, running, cache)
        running.attended.append(layer.index)
        given, (q, k, v) = q, (q, k, v) if KEPT in kwargs else (layer.rounded(x) for x in (q, k, v))
        store, padding = None if cache is None else cache.layers[layer.index].store, mask.padding
        rope, scale = cast(Rope, layer.rope), scaling(module, kwargs)
        call = LayerCall(rope, scale, padding, kwargs.get("softcap"), kwargs.get("s_aux"), layer.index, mask.state)
        if running.run is not None and store is not None:
            return running.run(q, k, v, call, store).to(given.dtype).contiguous(), None
        if self.observer is not None:
            self.observer(layer, q, k, v, padding)
        if isinstance(cache, LongspanCache) and padding != cache.padding:
            cache.accept(padding, mask.given is not None, cache.layers[layer.index].store.length)
        if running.positions is not None:
            running.compare(padding, 0 if store is None else store.length, v.shape[2])
        run = each_guess_alone(self.attender.run, running.guesses) if running.guesses else self.attender.run
        if not torch.is_grad_enabled():
            return run(q, k, v, call, store).to(given.dtype).contiguous(), None
        with torch.no_grad():
            out = run(q, k, v, call, store).to(given.dtype).contiguous()
        return interface.inference_only(out, q, k, v, *layer.weights(call.sinks)), None

    @untraced
    def end(self, decoder: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """After the decoder ran: raise if an attached layer did not run what is attached.

        A decoder that failed has no output, and an error of its own.
        """
        if (running := self.running) is None:
            return
        self.thread.running = running.outer
        release(running, output is None)
        if output is not None:
            finish(running, output[0])

    @contextmanager
    def attended_by(self, run: StoredRun) -> Iterator[None]:
        """In this thread's forwards inside, ``run`` attends and nobody checks padding and cache."""
        before, self.thread.run = self.thread.run, run
        try:
            yield
        finally:
            self.thread.run = before

    @property
    def running(self) -> Forward | None:
        """The forward that this thread is in."""
        return self.thread.running

    @untraced
    def enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the model around the decoder runs: its decoder has yet to, maybe with a cache made in between."""
        self.thread.began = False
        self.thread.uncached = not any(isinstance(x, Cache) for x in (*args, *kwargs.values()))
        return args, named_here(kwargs)

    def stood_in(self) -> None:
        """A recorded step runs in place of the decoder."""
        refuse_other_attention(self._config._attn_implementation, interface.NAME)
        for one in self._rotary:
            one.check()
        self.thread.began = True

    @untraced
    def leave(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """After the model around the decoder ran: raise if its decoder did not. One that failed has no output."""
        self.thread.uncached = False
        if output is not None and not self.thread.began:
            raise LongspanError(
                "longspan did not run in this forward: the model's decoder was replaced after longspan.extend; call "
                "longspan.restore(model) and extend it again"
            )

    @untraced
    def give_input(self, norm: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """For a norm that follows the rotation: longspan applies it after its own rotation."""
        running = self.running
        if running is not None:
            running.norms += 1
        return args[0]

    def _expected(self, config: Any) -> list[int]:
        """The attached layers that a forward runs; an early exit leaves out the last ones."""
        depth = getattr(config, "num_hidden_layers", None)
        return self._indices if depth is None else [index for index in self._indices if index < depth]

    def check(self, cache: Any) -> None:
        """Raise ``CacheError`` unless the cache is one of ours, filled under this method."""
        if not isinstance(cache, LongspanCache):
            raise CacheError(
                f"{CACHE_ARGUMENT} is a {type(cache).__name__}, which an extended model cannot use; leave it out, or "
                "pass longspan.new_cache(model)"
                + ("" if self._generates else "; the decoder alone was extended: for generate extend the whole model")
            )
        if cache.owner() is not self._owner():
            raise CacheError("the cache was filled by another model; pass longspan.new_cache(model)")
        if (ours := cache.attender) is self.attender:
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
