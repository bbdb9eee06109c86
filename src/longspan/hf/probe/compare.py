"""Compare outputs of a model: on which tokens, run in which way, and within which error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.errors import AttachError
from longspan.hf.interface import NotATensor
from longspan.model.placement import runs_on


def some_tokens(model: PreTrainedModel, count: int) -> Tensor:
    """``count`` token ids ``[T]`` int64 of the model's vocabulary, on the device that takes them."""
    vocabulary: int = model.get_input_embeddings().weight.shape[0]
    return (torch.arange(count, device=runs_on(model)) * 7 + 1) % vocabulary


@contextmanager
def run_for_outputs(model: PreTrainedModel) -> Iterator[str]:
    """Run a model for its outputs alone in this block: in evaluation, uncompiled, without gradients or autocast.

    Yields:
        The name of its attention implementation, which it has again after the block, as its modules have their modes.
    """
    implementation: str = model.config._attn_implementation
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        # Code that runs once is not worth compiling.
        uncompiled = torch.compiler.set_stance("force_eager")
        with torch.no_grad(), uncompiled, torch.autocast(runs_on(model).type, enabled=False):
            yield implementation
    finally:
        model.set_attn_implementation(implementation)
        for module, mode in training.items():
            module.training = mode


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Whatever a model fails at in this block, of whatever class, is an ``AttachError`` that says ``what`` first."""
    try:
        yield
    except AttachError:
        raise
    except NotATensor as error:  # whose advice is for a model that was extended
        raise AttachError(
            f"{what}: its own code computes with the attention mask, which longspan forms for no attached layer, so it "
            "cannot be extended; if that code is of a layer from another model, set its modules' config to that of "
            "this model"
        ) from error
    except Exception as error:
        raise AttachError(f"{what}: {' '.join(str(error).split())}") from error


def error_of(a: Tensor, b: Tensor) -> float:
    """Largest difference of ``a`` and ``b``, of the same shape, over the largest entry of ``b``."""
    return float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-30))


def tolerance(dtype: torch.dtype) -> float:
    """The largest ``error_of`` of outputs that are equal but for rounding."""
    # A wrong rotation is off by the size of the entries; a right one by a few roundings.
    return 1e-4 if dtype in (torch.float32, torch.float64) else 8 * torch.finfo(dtype).eps
