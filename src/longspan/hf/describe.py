"""A probed model in words, for its report."""

from __future__ import annotations

from collections.abc import Iterator

from longspan.attend import Attender
from longspan.bands import Index, Origin
from longspan.hf.layer import Layer
from longspan.hf.report import LayerReport


def describe(layer: Layer, rotations: int) -> LayerReport:
    """A layer whose cache holds so many rotations of each key."""
    rope = None
    if layer.rope is not None:
        rope = f"{layer.rope.rotated} of {layer.rope.head_dim} channels, {layer.rope.layout}"
        if layer.norms is not None:
            rope += ", normalised after the rotation"
    size = (
        0
        if layer.sliding is not None
        else layer.kv_heads * (rotations * layer.key_dim + layer.value_dim) * layer.itemsize
    )
    return LayerReport(layer.index, layer.name, rope, layer.reason, size)


def layer_notes(layers: list[Layer], window: int) -> Iterator[str]:
    """What a user should know of the layers."""
    if all(layer.rope is None for layer in layers):
        yield (
            f"attached to no layer ({layers[0].reason} and the like): the model runs as before. To extend it, load it "
            "with full attention, for example with sliding_window=None"
        )
    wide = [layer.index for layer in layers if layer.sliding is not None and layer.sliding > window]
    if wide:
        yield (
            f"the sliding windows of {len(wide)} stock layers are wider than the window of {window} tokens, so they "
            "see positions beyond it"
        )
    yield from dict.fromkeys(layer.note for layer in layers if layer.note)


def norm_notes(layers: list[Layer], attender: Attender) -> Iterator[str]:
    """What a user should know of a method on layers that normalise after their rotation."""
    if any(layer.norms for layer in layers) and not {Index(), Origin()} >= set(attender.tables.key_maps):
        yield (
            f"the model normalises after the rotation, so that scores depend on more than distances: "
            f"{attender.method.name} moves keys and queries together, and rows inside the window change too"
        )
