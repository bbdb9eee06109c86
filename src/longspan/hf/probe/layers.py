"""Find out, by running it, how a model rotates queries and keys: no list of model families.

Two tiny forwards see the same hidden states: one stock, one in which every layer gets ``cos = 1, sin = 0`` and the
stock layer's output is replayed. The first gives rotated queries and keys, the second unrotated ones; the rotation that
leads from one to the other is looked for among the model's own frequencies and the known layouts.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.errors import AttachError
from longspan.hf import interface
from longspan.hf.probe.compare import error_of, failing_as, run_for_outputs, some_tokens, tolerance
from longspan.hf.probe.frequencies import factor_of, frequencies
from longspan.model.layer import Layer, unrotated
from longspan.rope import Layout, Norm, Rope, Table, rotate

TOKENS = 24


_Calls = dict[nn.Module, tuple[Tensor, Tensor]]  # what each child of an attention module was given first, and gave


@dataclass
class _Seen:
    """One layer's inputs and output in one pass."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    kwargs: dict[str, Any]
    positions: Any = None  # the layer's ``position_embeddings``, noted if they are replaced
    children: _Calls = field(default_factory=dict)


def probe(model: PreTrainedModel) -> list[Layer]:
    """The attention layers of a model, in order; raises ``AttachError`` if any could not be understood.

    The model is left exactly as it was.
    """
    interface.register()
    with run_for_outputs(model) as implementation:
        model.set_attn_implementation(interface.NAME)
        if model.config._attn_implementation != interface.NAME:
            raise AttachError(
                f"{type(model).__name__} computes attention in its own code and not through transformers' attention "
                "interface, so there is nowhere to attach; use a model that supports set_attn_implementation"
            )
        return _probe(model, implementation)


def _probe(model: PreTrainedModel, implementation: str) -> list[Layer]:
    stock: dict[nn.Module, _Seen] = {}
    names = {module: name for name, module in model.named_modules()}

    def record(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, kwargs: dict[str, Any]
    ) -> tuple[Tensor, None]:
        out = interface.stock_attention(implementation, module, q, k, v, mask, kwargs)[0]
        if module in stock:
            raise AttachError(f"{names[module]} runs several times in one forward; shared layers are not supported")
        stock[module] = _Seen(q, k, v, out, kwargs)
        return out, None

    with interface.recording(record):
        _forward(model)
    if not stock:
        raise AttachError(
            f"no layer of {type(model).__name__} called transformers' attention interface: there is nowhere to attach"
            f"{_fused(model)}"
        )
    bare = _replayed(model, stock, identity=True)
    tables = [Table(freq * way, factor_of(x, name)) for _, x, name, freq in frequencies(model) for way in (1, -1)]
    layers = [_layer(module, names[module], stock[module], bare[module], tables) for module in stock]
    unknown = [layer for layer in layers if layer.rope is None and layer.reason is None]
    if unknown:
        _find_norms(model, stock, bare, unknown, tables)
    for layer in unknown:
        if layer.rope is None:
            raise AttachError(
                f"{layer.name} ({type(layer.module).__name__}): unsupported rotation of queries and keys "
                "(supported: halves or interleaved pairs, of all, the first or the last channels, either way, at the "
                "frequencies of the model's own rotary module)"
            )
    if all(layer.rope is None for layer in layers):
        raise AttachError(_no_layer(type(model).__name__, layers))
    return layers


def _no_layer(model: str, layers: list[Layer]) -> str:
    """Why there is no layer to attach to, and what to do."""
    reasons = "; ".join(dict.fromkeys(str(layer.reason) for layer in layers))
    if reasons == NO_POSITIONS:
        return f"{model} has no rotary positions in any layer; longspan needs RoPE"
    remedy = "it cannot be extended"
    local = next((layer for layer in layers if layer.sliding is not None), None)
    if local is not None and any(layer.reason == NO_POSITIONS for layer in layers):
        remedy += ": no layer sees more positions than it was trained on"
    elif local is not None:
        typed = _types_of(local.module) is not None
        how = 'layer_types=["full_attention", ...]' if typed else "sliding_window=None"
        remedy = f"to extend it, load it with full attention in all layers: {how} in its config"
    return f"{model} has no layer to attach to ({reasons}); {remedy}"


NO_POSITIONS = "no rotary positions in this layer"
HYBRID = "hybrid layer, whose cache holds a state beside keys and values"


def _layer(module: nn.Module, name: str, rotated: _Seen, bare: _Seen, tables: list[Table]) -> Layer:
    if bare.positions is None:
        raise AttachError(
            f"{name} ({type(module).__name__}) receives no position_embeddings, so it has no rotary positions that "
            "longspan could replace; take a model with RoPE"
        )
    index = getattr(module, "layer_idx", None)
    if index is None:
        raise AttachError(f"{name} ({type(module).__name__}) has no layer_idx, so its cache entry cannot be identified")
    q, k, v = rotated.q, rotated.k, rotated.v
    layer = Layer(module, name, index, q.shape[1], k.shape[1], k.shape[-1], v.shape[-1], k.element_size())
    sliding = rotated.kwargs.get("sliding_window")
    types = _types_of(module)
    if sliding is None and types is not None and types[index] == "hybrid":
        layer.reason = HYBRID
    elif sliding is not None or (types is not None and "full" not in types[index]):
        layer.sliding = sliding or 0
        layer.reason = f"sliding-window attention ({sliding} tokens)" if types is None or sliding else types[index]
    elif torch.equal(q, bare.q) and torch.equal(k, bare.k):
        layer.reason = NO_POSITIONS
    else:
        layer.rope = _find_rope(q, k, bare.q, bare.k, tables)
    return layer


def _types_of(module: nn.Module) -> list[str] | None:
    """The kinds of attention of a model's layers, if its config names them."""
    types: list[str] | None = getattr(getattr(module, "config", None), "layer_types", None)
    return types


def _find_rope(q: Tensor, k: Tensor, bare_q: Tensor, bare_k: Tensor, tables: list[Table]) -> Rope | None:
    """The rotation from the bare queries and keys ``[1, H, T, D]`` to the others, or None."""
    positions = torch.arange(q.shape[2])
    best, best_error = None, tolerance(q.dtype)
    for table, layout in product(tables, get_args(Layout)):
        width = 2 * table.inv_freq.numel()
        if width > q.shape[-1]:
            continue
        for start in {0, q.shape[-1] - width}:
            cos, sin = (x.to(q.device) for x in table(positions))
            error = max(
                error_of(rotate(a, cos, sin, layout=layout, start=start), b) for a, b in ((bare_q, q), (bare_k, k))
            )
            if error < best_error:
                best, best_error = Rope(table, q.shape[-1], layout, start), error
    return best


def _find_norms(
    model: PreTrainedModel,
    stock: dict[nn.Module, _Seen],
    bare: dict[nn.Module, _Seen],
    unknown: list[Layer],
    tables: list[Table],
) -> None:
    """Layers that normalise after the rotation: compare what goes into their norms instead of what comes out."""
    replayed = _replayed(model, stock, identity=False)
    for layer in unknown:
        rotated, plain = replayed[layer.module], bare[layer.module]
        norm_q, norm_k = (_maker(rotated.children, x) for x in (rotated.q, rotated.k))
        if norm_q is None or norm_k is None:
            continue
        (q, k), (bare_q, bare_k) = ([seen.children[n][0] for n in (norm_q, norm_k)] for seen in (rotated, plain))
        rope = _find_rope(q, k, bare_q, bare_k, tables)
        if rope is not None:
            layer.norms = (norm_q, norm_k)
            norms = (_in_its_dtype(norm.forward) for norm in layer.norms)
            layer.rope = Rope(rope.table, rope.head_dim, rope.layout, rope.start, *norms)


def _in_its_dtype(norm: Norm) -> Norm:
    """``norm`` in the dtype of its input: under autocast its weights are wider, and so is what it gives."""
    return lambda x: norm(x).to(x.dtype)


def _maker(calls: _Calls, x: Tensor) -> nn.Module | None:
    return next((child for child, (_, out) in calls.items() if out.shape == x.shape and torch.equal(out, x)), None)


def _fused(model: PreTrainedModel) -> str:
    """The way out for a model in which fused modules took the place of attention, as of quantised weights."""
    kinds = sorted({type(part).__name__ for part in model.modules() if "fused" in type(part).__name__.lower()})
    return f"; {kinds[0]} computes attention by itself: load the model without fused modules" if kinds else ""


def _replayed(model: PreTrainedModel, stock: dict[nn.Module, _Seen], *, identity: bool) -> dict[nn.Module, _Seen]:
    """A forward in which each layer gives its stock output, so that all see the stock hidden states."""
    seen: dict[nn.Module, _Seen] = {}
    children: dict[nn.Module, _Calls] = {module: {} for module in stock}

    def replay(
        own: Any, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, kwargs: dict[str, Any]
    ) -> tuple[Tensor, None]:
        seen[module] = _Seen(q, k, v, stock[module].out, kwargs, own, children[module])
        return stock[module].out, None

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = kwargs.get("position_embeddings")
        kwargs["longspan"] = partial(replay, own)
        if identity and own is not None:
            kwargs["position_embeddings"] = unrotated(own)
        return args, kwargs

    def note(calls: _Calls, child: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(out, Tensor):
            calls[child] = (args[0], out)

    with ExitStack() as stack:
        for module in stock:
            stack.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            for child in module.children():
                stack.enter_context(child.register_forward_hook(partial(note, children[module])))
        _forward(model)
    for module, given in stock.items():
        layer = f"{type(module).__name__} (layer {getattr(module, 'layer_idx', '?')})"
        if module not in seen:
            raise AttachError(
                f"{layer} does not pass its keyword arguments on to the attention function, so longspan cannot reach it"
            )
        if not bool(given.v.isfinite().all()):
            raise AttachError(
                f"{layer} returns values that are NaN or infinite for a few plain tokens: its weights, or those of a "
                f"layer before it, are damaged, or its dtype ({given.v.dtype}) is too narrow for them"
            )
        if not torch.equal(given.v, seen[module].v):
            raise AttachError(f"{layer}: two forwards over the same tokens differ; is there dropout?")
    return seen


def _forward(model: PreTrainedModel) -> None:
    with failing_as(f"{type(model).__name__} does not run on {TOKENS} tokens with longspan's attention and masks"):
        model(input_ids=some_tokens(model, TOKENS)[None], use_cache=False)
