"""A decoder layer with packed matrices takes in few tokens by two calls of C and the attention between them.

Half of a token's time on a CPU is spent between kernels. A layer is replaced only if its own forward was tried and gave
the same, and its modules run as ever if anyone listens to them, as hooks and adapters do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, cast
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks

from longspan.hf import interface
from longspan.hf.argument import given_cache
from longspan.hf.forward import Forward
from longspan.hf.probe.compare import error_of
from longspan.kernels import cpu
from longspan.kernels.linear.contract import FEW
from longspan.kernels.linear.decoder_layer import DecoderLayer, Linear, RMSNorm
from longspan.kernels.linear.plan import numbers
from longspan.model.layer import Layer
from longspan.rope import Rope
from longspan.weights.modules import PackedLinear

_RAMP, _SMALL = torch.linspace(-8, 8, 33), 0.05
KEPT = "longspan_kept"  # an argument of attention: queries, keys and values are as they are kept
_ALIKE = 1e-4  # of the largest number; sums in fp32 of another order differ by a hundredth of that


class Attending(Protocol):
    """An attachment, as a decoder layer needs it; see ``longspan.hf.hooks.Attachment``."""

    layers: list[Layer]

    @property
    def running(self) -> Forward | None: ...

    def attend(
        self,
        layer: Layer,
        cache: Any,
        running: Any,
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Any,
        kwargs: dict[str, Any],
    ) -> tuple[Tensor, None]:
        """``[B, T, H, Dv]`` of q ``[B, H, T, D]``, k ``[B, Hkv, T, D]`` and v ``[B, Hkv, T, Dv]``, and no weights."""


class TokenLayer:
    """A decoder layer whose linear part is computed in C.

    Args:
        parent: the decoder layer.
        layer: its attention.

    Raises:
        AttributeError, TypeError, ValueError: it is built of other parts.
    """

    def __init__(self, parent: Any, layer: Layer) -> None:
        attention, mlp = parent.self_attn, parent.mlp
        norms = parent.input_layernorm, parent.post_attention_layernorm
        linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        if attention is not layer.module or layer.norms is not None:
            raise TypeError("another attention")
        if any(type(one) is not PackedLinear for one in linears) or parent.training:
            raise TypeError("matrices that are not packed, or training")
        self.layer, self._parent = layer, ref(parent)
        self._stock: Callable[..., Any] = type(parent).forward
        self._parts = [*norms, mlp, *mlp.children(), *attention.children()]
        self._attention, self._projections = attention, linears[:3]
        self._modules = [(part._modules, dict(part._modules)) for part in (parent, attention, mlp)]
        self._held = [(x._parameters, dict(x._parameters)) for x in (*norms, *linears)]
        self._places = [(x, x.data_ptr()) for _, held in self._held for x in held.values() if x is not None]
        if not torch.allclose(mlp.act_fn(_RAMP), nn.functional.silu(_RAMP), atol=1e-6):
            raise TypeError("another gate")
        self._dtype = layer.kept_as or torch.float32
        self._config = getattr(attention, "config", None)
        self._given: dict[str, Any] = {}
        first, second = (RMSNorm(one.weight, _epsilon(one)) for one in norms)
        q, k, v, out, gate, up, down = (Linear(one.matrix, one.bias) for one in linears)
        most = torch.finfo(self._dtype).max / (1 if layer.kept_as is None else 4)
        self._calls: DecoderLayer | None = DecoderLayer(first, (q, k, v), out, second, (gate, up), down, most)

    def same(self, parent: nn.Module) -> bool:
        """Whether the layer's own forward gives the same.

        It is tried on two tokens of one row, on one of two rows, and on those that make its largest queries, keys and
        values, which a layer might clip. They are small, so that little of a result is what went in.
        """

        def attended(
            module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, kwargs: dict[str, Any]
        ) -> tuple[Tensor, None]:
            self._given = {**kwargs, KEPT: True}
            return _made_up(q, k, v), None

        assert self._calls is not None
        generator = torch.Generator().manual_seed(0)
        some = [torch.randn(*shape, self._calls.width, generator=generator) for shape in ((1, 2), (2, 1))]
        for hidden in (*some, self._strongest()[None]):
            hidden = hidden * _SMALL / hidden.square().mean().sqrt()
            ones = torch.ones(1, hidden.shape[1], cast(Rope, self.layer.rope).rotated)
            with interface.recording(attended), torch.inference_mode():
                stock = self._stock(parent, hidden, position_embeddings=(ones, torch.zeros_like(ones)))
            found = self._calls.before(hidden, torch.float32)
            if found is None or not isinstance(stock, Tensor):
                return False
            ours = self._calls.after(hidden, _made_up(*self._by_head(found, hidden.shape[:2])).contiguous())
            if not error_of(ours - hidden, stock - hidden) <= _ALIKE:
                return False
        return True

    def _strongest(self) -> Tensor:
        """``[3, K]``, the hidden states of which a query, a key and a value are as large as they can be."""
        norm, (q, k, v) = self._parts[0].weight.detach(), self._projections
        rows = [numbers(one.matrix, torch.float32, slice(0, one.out_features)) * norm for one in (q, k, v)]
        return torch.stack([x[x.square().sum(dim=1).argmax()] for x in rows])

    def _by_head(self, found: list[Tensor], shape: tuple[int, ...]) -> list[Tensor]:
        widths = self.layer.key_dim, self.layer.key_dim, self.layer.value_dim
        return [x.view(*shape, -1, width).transpose(1, 2) for x, width in zip(found, widths, strict=True)]

    def forward_of(self, attachment: Attending) -> Callable[..., Any]:
        """The forward that takes the place of the layer's own under an attachment."""

        @wraps(self._stock)
        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            running = attachment.running
            calls = self._calls
            ours = running is not None and not args and running.config is self._config and calls is not None
            if ours and calls is not None and self._takes(hidden_states):
                hidden = hidden_states.contiguous()
                found = calls.before(hidden, self._dtype)
                if found is not None:  # else the layer's own forward raises what is wrong
                    q, k, v = self._by_head(found, hidden.shape[:2])
                    mask, cache, module = kwargs.get("attention_mask"), given_cache(kwargs), self.layer.module
                    out, _ = attachment.attend(self.layer, cache, running, module, q, k, v, mask, self._given)
                    return calls.after(hidden, out)
            return self._stock(self._parent(), hidden_states, *args, **kwargs)

        return forward

    def _takes(self, x: Tensor) -> bool:
        """Whether C computes it for hidden states ``[B, T, K]``, and nobody listens to the modules in between."""
        return (
            x.dtype == torch.float32
            and x.is_cpu
            and x.dim() == 3
            and x.shape[0] * x.shape[1] <= FEW
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and not interface.transforming()
            and cpu.unavailable_reason() is None
            and all(map(_unchanged, self._modules))
            and all(map(_unchanged, self._held))
            and self._in_place()
            and not any(map(_listened_to, self._parts))
            and not _listened_to(self._attention, 1)
            and not (global_hooks._global_forward_hooks or global_hooks._global_forward_pre_hooks)
        )

    def _in_place(self) -> bool:
        """Whether the weights lie where they lay; those that moved are let go of, and the modules run from then on."""
        if all(one.data_ptr() == at for one, at in self._places):
            return True
        self._calls, self._places, self._held = None, [], []
        return False


class Replaced:
    """A decoder layer whose forward is another's until ``remove``."""

    def __init__(self, parent: nn.Module, forward: Callable[..., Any]) -> None:
        self._parent, self._forward = ref(parent), forward
        parent.forward = forward

    def remove(self) -> None:
        """Give the layer its own forward back, unless somebody wrapped it; it calls the layer's own from now on."""
        parent = self._parent()
        if parent is not None and parent.__dict__.get("forward") is self._forward:
            del parent.forward


def replace_forwards(model: nn.Module, attachment: Attending) -> list[Replaced]:
    """Let C take in tokens for all decoder layers that it can.

    The model's attention must be longspan's already, and its attention modules have no hooks yet.
    """
    found: list[Replaced] = []
    if cpu.unavailable_reason() is not None or not any(isinstance(x, PackedLinear) for x in model.modules()):
        return found
    for layer in attachment.layers:
        if layer.rope is None:
            continue
        parent = model.get_submodule(layer.name.rpartition(".")[0])
        try:
            one = TokenLayer(parent, layer)
            fits = "forward" not in parent.__dict__ and one.same(parent)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            continue  # a layer of another kind
        if fits:
            found.append(Replaced(parent, one.forward_of(attachment)))
    return found


def _epsilon(norm: Any) -> float:
    found = getattr(norm, "variance_epsilon", None)
    return float(norm.eps if found is None else found)


def _made_up(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Something that depends on all queries ``[B, H, T, D]``, keys and values: ``[B, T, H, Dv]``."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    ramp = torch.arange(1, q.shape[-1] + 1, dtype=q.dtype)
    of_q, of_k = ((x * ramp).mean(-1, keepdim=True) for x in (q, k))  # not bent: a clipped one shows
    return (of_q * v + of_k * v.flip(-1)).transpose(1, 2)


def _unchanged(held: tuple[dict[str, Any], dict[str, Any]]) -> bool:
    """Whether a module has the same modules or parameters, by name, as when it was held."""
    now, before = held
    return len(now) == len(before) and all(now.get(name) is one for name, one in before.items())


def _listened_to(module: Any, own: int = 0) -> bool:
    """Whether anyone follows a module's calls, beside hooks of our own before them."""
    of = module.__dict__
    return "forward" in of or bool(of["_forward_hooks"]) or len(of["_forward_pre_hooks"]) != own
