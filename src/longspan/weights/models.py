"""A whole model with packed matrices: its modules replaced, and what it says of itself."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.logging import tqdm

from longspan.errors import LongspanError
from longspan.kernels.linear.contract import GROUP, PackedMatrix
from longspan.weights import FORMS, KEPT_AS, PACKED_AS
from longspan.weights.modules import PackedEmbedding, PackedLinear, packed_module
from longspan.weights.rounding import rounded


def fits(module: Any) -> bool:
    """Whether a module's matrix can be packed: it is a plain linear or embedding one with rows of whole groups."""
    return type(module) in (nn.Linear, nn.Embedding) and not module.weight.shape[1] % GROUP


def bits_of(form: str, module: nn.Module, ends: tuple[nn.Module | None, ...]) -> int | None:
    """Of the codes of a module's matrix; None keeps its own.

    Args:
        ends: the model's embeddings and head: an error there is one of every token.
    """
    bits = FORMS[form]
    return 8 if bits is not None and (module in ends or isinstance(module, nn.Embedding)) else bits


def place(model: PreTrainedModel, name: str, matrix: PackedMatrix, dtype: torch.dtype) -> None:
    """Put a packed matrix in the place of a module's."""
    model.set_submodule(name, packed_module(model.get_submodule(name), matrix, dtype))


def tie(model: PreTrainedModel) -> None:
    """Let the head have the embeddings' matrix."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(embedding, PackedEmbedding):
        shared = PackedLinear(embedding.matrix, head.bias)
        shared.share(embedding)
        model.set_output_embeddings(shared)
    else:
        head.weight = embedding.weight


def pack(model: PreTrainedModel, form: str) -> None:
    """Round the matrices of a model in memory, one after the other; those whose rows are no multiple of 32 stay.

    Raises:
        LongspanError: less than half of the weights can be packed, or the model is quantised already.
    """
    if getattr(model, "is_quantized", False):
        raise LongspanError("the weights are quantised already; load them as they are: --weights as-is")
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    ends = (embedding, head)
    found = [name for name, module in model.named_modules() if fits(module) and not (tied and module is head)]
    numbers = {id(x): x.numel() for x in model.parameters()}
    packed = sum(cast(Any, model.get_submodule(name)).weight.numel() for name in found)
    if packed < sum(numbers.values()) / 2:
        raise LongspanError(
            f"--weights {form} packs matrices of plain linear modules with rows of 32 numbers, which are "
            f"{packed / sum(numbers.values()):.0%} of the weights of {type(model).__name__}; the others, such as those "
            "of experts, would stay as they are; leave --weights out"
        )
    for name in tqdm(found, desc="Packing", unit="matrix"):
        module: Any = model.get_submodule(name)
        weight = module.weight.detach()
        place(model, name, rounded(weight, bits_of(form, module, ends) or 8), weight.dtype)
    if tied:
        tie(model)
    model.requires_grad_(False)
    mark(model, form)


def mix(model: PreTrainedModel, kept: torch.dtype, many: torch.dtype | None) -> None:
    """Let a model in float32 keep queries, keys and values as ``kept``, and multiply many rows in ``many``.

    The head multiplies in float32: its products are the logits themselves.
    """
    setattr(model, KEPT_AS, kept)
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, PackedLinear) and module is not head:
            module.many = many


def kept_in(model: PreTrainedModel) -> torch.dtype:
    """The dtype of a model's queries, keys and values in attention."""
    kept: torch.dtype = getattr(model, KEPT_AS, model.dtype) if model.dtype == torch.float32 else model.dtype
    return kept


def mark(model: PreTrainedModel, form: str) -> None:
    """Let the model say its form; its packed weights are no checkpoint that transformers could load."""
    setattr(model, PACKED_AS, form)
    model.save_pretrained = partial(_not_saved, form)


def _not_saved(form: str, *_: Any, **__: Any) -> None:
    raise LongspanError(
        f"transformers could not load packed weights ({form}); save the model that was loaded with weights='fp32' or "
        "'bf16', and pack it when it is loaded"
    )
