"""A document under other weights than read it: how far its keys and values are from those that these would compute."""

from __future__ import annotations

import warnings

import torch
from transformers import PreTrainedModel

from longspan.documents.contents import Contents
from longspan.documents.reading import forward
from longspan.errors import DocumentError
from longspan.hf.cache import StoreLayer
from longspan.hf.hooks import Attachment

RELAXED = frozenset({"weights", "weights_sha256"})  # facts that may differ; the dtype is that of what is stored
_TOKENS = 256  # that are read once more
_MOST = 0.5  # of the kept ones' root mean square: beyond it they are as good as another text's


def accept(model: PreTrainedModel, attachment: Attachment, contents: Contents) -> float:
    """The difference to what these weights would have read, of which it warns.

    Raises:
        DocumentError: it is so large that they are another model's.
    """
    tokens, layer, error = _difference(model, attachment, contents)
    said = (
        f"other weights than these read the document: over its first {tokens} tokens, its keys and values differ from "
        f"those of these weights by up to {error:.1%} (layer {layer}, root mean square)"
    )
    if not error <= _MOST:
        raise DocumentError(f"{said}, so they are another model's: read the text again")
    warnings.warn(f"{said}; answers may be worse than after reading it again", stacklevel=2)
    return error


@torch.inference_mode()
def _difference(model: PreTrainedModel, attachment: Attachment, contents: Contents) -> tuple[int, int, float]:
    """Tokens that were compared; of the layer that is furthest off, its number and how far."""
    ids = contents.ids[:_TOKENS]
    kept, fresh = contents.cache(model, attachment), attachment.new_cache()
    forward(model, ids, fresh, len(ids))
    worst = 0, 0.0
    for number, layers in enumerate(zip(kept.layers, fresh.layers, strict=True)):
        stores = [layer.store for layer in layers if isinstance(layer, StoreLayer)]
        for stream in (*range(stores[0].rotations), None) if stores else ():
            old, new = (store.take(stream, 0, len(ids)).float() for store in stores)
            error = float((old - new).norm() / old.norm().clamp(min=torch.finfo(old.dtype).tiny))
            worst = max(worst, (number, error), key=lambda one: one[1] if one[1] == one[1] else torch.inf)
    return len(ids), *worst
