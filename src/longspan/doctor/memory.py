"""Bytes of a model's weights, keys and values, and index at a length, in each tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from longspan.choosing.base import Choosing
from longspan.machine.memory import SHARE
from longspan.memory import Tier
from longspan.methods import Method
from longspan.model.layer import Layer


@dataclass(frozen=True)
class LayerShape:
    """A layer whose cache grows.

    Attributes:
        number: its place in the model.
        heads, kv_heads: ``H`` and ``Hkv``.
        key_dim, value_dim: ``D`` and ``Dv``.
        rotations: stored rotations of each key.
        itemsize: bytes of a stored number.
        attached: whether the method runs in it; else it attends to everything.
    """

    number: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    rotations: int
    itemsize: int
    attached: bool = True

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of a token."""
        return self.kv_heads * (self.rotations * self.key_dim + self.value_dim) * self.itemsize


@dataclass(frozen=True)
class Needs:
    """Bytes for one row of a batch at a length.

    Attributes:
        length: tokens.
        weights: of the model, which has them already.
        keys_and_values: of the layers that the method runs in, wherever they lie.
        stock: of other layers, always on the device.
        index: what keys are chosen by, always on the device.
        recent: the copy of the last tokens that a GPU keeps in the other tiers.
    """

    length: int
    weights: int
    keys_and_values: int
    stock: int
    index: int
    recent: int


@dataclass(frozen=True)
class Fit:
    """A tier held against what is free.

    Attributes:
        tier: where keys and values lie.
        device, host, disk: bytes that the cache takes there.
        free: bytes that are free in the tier; None if the system does not report them.
        fits: whether it takes at most ``SHARE`` of what is free (all of a disk), there and on the device; None
            if that is not known.
        longest: the most tokens for which it does; None if that is not known.
        reason: why this tier is not for this model or method, if it is not.
    """

    tier: Tier
    device: int
    host: int
    disk: int
    free: int | None
    fits: bool | None
    longest: int | None
    reason: str | None = None


def shapes(layers: Sequence[Layer], rotations: int) -> tuple[LayerShape, ...]:
    """The probed layers whose cache grows.

    Args:
        rotations: of each key, that the layers with the method store.
    """
    found = []
    for layer in layers:
        if layer.sliding is None:
            attached = layer.rope is not None
            sizes = layer.heads, layer.kv_heads, layer.key_dim, layer.value_dim
            found.append(
                LayerShape(layer.index, *sizes, rotations if attached else 1, layer.itemsize, attached=attached)
            )
    return tuple(sorted(found, key=lambda shape: shape.number))


def weights_of(model: PreTrainedModel) -> int:
    """Bytes of a model's parameters and buffers; those that several modules share count once."""
    return sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))


def needs(
    model: PreTrainedModel,
    method: Method,
    layers: Sequence[LayerShape],
    *,
    length: int,
    window: int,
    reduced: int | None = None,
    on_gpu: bool = False,
) -> Needs:
    """Bytes of a prompt of ``length`` tokens and its answer in a store that is as large as they are.

    A store that fills up grows by half, so one that is filled by prefill chunks may take up to 1.5 times as much.

    Args:
        method: a resolved one.
        window: the model's.
        reduced: ``d'`` of a calibration, if one is used.
    """
    own, stock = [x for x in layers if x.attached], [x for x in layers if not x.attached]
    per_token = sum(layer.token_bytes for layer in own)
    return Needs(
        length=length,
        weights=weights_of(model),
        keys_and_values=length * per_token,
        stock=length * sum(layer.token_bytes for layer in stock),
        index=sum(index_bytes(method, layer, length, window, reduced) for layer in own),
        recent=2 * window * per_token if on_gpu else 0,
    )


def index_bytes(method: Method, layer: LayerShape, length: int, window: int, reduced: int | None = None) -> int:
    """Bytes of the index entries by which a layer's keys are chosen; 0 if it has none beside the keys."""
    selection = method.selection(window)
    if not isinstance(selection, Choosing):
        return 0
    return selection.stored_units(length) * selection.unit_cost(layer, reduced).stored


def tiers(
    need: Needs, *, selects: bool, on_gpu: bool, device_free: int | None, host_free: int | None, disk_free: int
) -> tuple[Fit, ...]:
    """Each tier held against what is free there and on the device.

    Args:
        selects: whether the method chooses keys, without which a GPU needs all of them.
    """
    found = []
    near = None if device_free is None else round(device_free * SHARE)
    places: tuple[tuple[Tier, int | None], ...] = (("device", device_free), ("host", host_free), ("disk", disk_free))
    for tier, free in places:
        reason = None
        if tier == "host" and not on_gpu:
            reason = "for a model on the CPU the same memory as device"
        elif tier != "device" and on_gpu and not selects:
            reason = "on a GPU for methods that choose keys"
        grows, held = need.stock + need.index, {"device": need.stock + need.index, "host": 0, "disk": 0}
        fixed = 0 if tier == "device" else need.recent
        held["device"] += fixed
        held[tier] += need.keys_and_values
        grows += need.keys_and_values if tier == "device" else 0
        room = free if tier == "disk" or free is None else round(free * SHARE)
        fits = longest = None
        if room is not None and near is not None:
            fits = held[tier] <= room and held["device"] <= near
            limits = [(near - fixed) * need.length // grows] if grows else []
            limits += [] if tier == "device" else [room * need.length // need.keys_and_values]
            longest = max(min(limits), 0)
        found.append(Fit(tier, **held, free=free, fits=fits, longest=longest, reason=reason))
    return tuple(found)
