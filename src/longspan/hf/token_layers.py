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
from longspan.model.layer import Layer
from longspan.rope import Rope
from longspan.weights.modules import PackedLinear

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
        self._attention = attention
        self._held = [
            (part._parameters, name, one, one.data_ptr())
            for part in (*norms, *linears)
            for name, one in part._parameters.items()
            if one is not None
        ]
        self._dtype = layer.kept_as or torch.float32
        self._config = getattr(attention, "config", None)
        self._given: dict[str, Any] = {}
        first, second = (RMSNorm(one.weight, _epsilon(one)) for one in norms)
        q, k, v, out, gate, up, down = (Linear(one.matrix, one.bias) for one in linears)
        most = torch.finfo(self._dtype).max / (1 if layer.kept_as is None else 4)
        self._calls = DecoderLayer(first, (q, k, v), out, second, (gate, up), down, most)

    def same(self, parent: nn.Module) -> bool:
        """Whether the layer's own forward gives the same, for two tokens of one row and one of two rows."""

        def attended(
            module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, kwargs: dict[str, Any]
        ) -> tuple[Tensor, None]:
            self._given = kwargs
            return _made_up(q, k, v), None

        generator = torch.Generator().manual_seed(0)
        width = self._calls.width
        for shape in ((1, 2), (2, 1)):
            hidden = torch.randn(*shape, width, generator=generator)
            ones = torch.ones(1, shape[1], cast(Rope, self.layer.rope).rotated)
            with interface.recording(attended), torch.inference_mode():
                stock = self._stock(parent, hidden, position_embeddings=(ones, torch.zeros_like(ones)))
            found = self._calls.before(hidden, torch.float32)
            if found is None or not isinstance(stock, Tensor):
                return False
            ours = self._calls.after(hidden, _made_up(*self._by_head(found, shape)).contiguous())
            if not error_of(ours, stock) <= _ALIKE:
                return False
        return True

    def _by_head(self, found: list[Tensor], shape: tuple[int, ...]) -> list[Tensor]:
        widths = self.layer.key_dim, self.layer.key_dim, self.layer.value_dim
        return [x.view(*shape, -1, width).transpose(1, 2) for x, width in zip(found, widths, strict=True)]

    def forward_of(self, attachment: Attending) -> Callable[..., Any]:
        """The forward that takes the place of the layer's own under an attachment."""

        @wraps(self._stock)
        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            running = attachment.running
            if running is not None and not args and running.config is self._config and self._takes(hidden_states):
                hidden = hidden_states.contiguous()
                found = self._calls.before(hidden, self._dtype)
                if found is not None:  # else the layer's own forward raises what is wrong
                    q, k, v = self._by_head(found, hidden.shape[:2])
                    mask, cache, module = kwargs.get("attention_mask"), given_cache(kwargs), self.layer.module
                    out, _ = attachment.attend(self.layer, cache, running, module, q, k, v, mask, self._given)
                    return self._calls.after(hidden, out)
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
            and all(of.get(name) is one and one.data_ptr() == at for of, name, one, at in self._held)
            and not any(map(_listened_to, self._parts))
            and not _listened_to(self._attention, 1)
            and not (global_hooks._global_forward_hooks or global_hooks._global_forward_pre_hooks)
        )


class Replaced:
    """A decoder layer whose forward is another's until ``remove``."""

    def __init__(self, parent: nn.Module, forward: Callable[..., Any]) -> None:
        self._parent = ref(parent)
        parent.forward = forward

    def remove(self) -> None:
        """Give the layer its own forward back."""
        parent = self._parent()
        if parent is not None:
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
    return ((q * k * ramp).sum(-1, keepdim=True).tanh() * v + v.flip(-1)).transpose(1, 2)


def _listened_to(module: Any, own: int = 0) -> bool:
    """Whether anyone follows a module's calls, beside hooks of our own before them."""
    of = module.__dict__
    return "forward" in of or bool(of["_forward_hooks"]) or len(of["_forward_pre_hooks"]) != own
