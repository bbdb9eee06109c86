"""The model inside a user's object: wrappers around it are removed if that is safe."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from longspan.errors import AttachError


def unwrap(model: Any) -> PreTrainedModel:
    """The transformers model inside ``model``; ``model`` itself if it is no wrapper.

    Raises:
        AttachError: there is no such model, or its wrapper would not run the attachment.
    """
    while not isinstance(model, PreTrainedModel):
        inner = _inside(model)
        if inner is None:
            raise AttachError(_why_none(model))
        model = inner
    return model


def runnable(model: Any) -> Any:
    """``module_of`` what can be extended.

    Raises:
        AttachError: as of ``unwrap``.
    """
    unwrap(model)
    return module_of(model)


def module_of(model: Any) -> Any:
    """What runs a model when it is called: ``model``, or of a pipeline, which takes texts, the model inside.

    Raises:
        AttachError: it is neither.
    """
    if is_a(model, "transformers.pipelines.base", "Pipeline"):
        return model.model
    if not isinstance(model, nn.Module):
        raise AttachError(_why_none(model))
    return model


def wrapper_note(model: Any) -> str | None:
    """For the report: which wrapper was taken off what ``unwrap`` takes; None if there was none."""
    wrappers: list[str] = []
    while not isinstance(model, PreTrainedModel):
        wrappers.insert(0, type(model).__name__)
        model = _inside(model)
    return f"attached to the model inside {' inside '.join(wrappers)}, which also runs it" if wrappers else None


def _inside(wrapper: Any) -> Any:
    """The object in a wrapper that passes calls on as they come; None if this is no such wrapper."""
    if isinstance(wrapper, type):
        return None
    if isinstance(wrapper, nn.DataParallel):
        raise AttachError(
            "DataParallel copies the model to every device in each forward, without the attachment; "
            "extend model.module and use it on one device, or load the model with device_map"
        )
    if is_a(wrapper, "torch.distributed.fsdp", "FullyShardedDataParallel"):
        raise AttachError(
            "FullyShardedDataParallel keeps the weights in parts, with which the model inside does not run by itself; "
            "extend the model before it is wrapped, and pass longspan the model itself, the part 'module'"
        )
    if is_a(wrapper, "transformers.pipelines.base", "Pipeline"):
        return wrapper.model
    if is_a(wrapper, "peft", "PeftModel"):
        if getattr(wrapper.active_peft_config, "is_prompt_learning", False):
            raise AttachError(
                f"{type(wrapper).__name__} prepends learned tokens, which longspan's positions do not "
                "include; merge an adapter such as LoRA, or extend the model without it"
            )
        return wrapper.get_base_model()
    if isinstance(wrapper, nn.Module) and type(wrapper).__name__ in ("OptimizedModule", "DistributedDataParallel"):
        return getattr(wrapper, "_orig_mod", None) or getattr(wrapper, "module", None)
    return None


def is_a(x: Any, module: str, name: str) -> bool:
    """Whether ``x`` is of a class of a module that is loaded, which it is if there is such an object."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(x, kind)


def _why_none(x: Any) -> str:
    if isinstance(x, str):
        return f"{x!r} is a name; load the model first: model, tokenizer = longspan.load({x!r})"
    if x is None:
        return 'None was passed instead of a model; load one: model = AutoModelForCausalLM.from_pretrained("...")'
    if isinstance(x, type):
        return f"{x.__name__} is a class; pass a model, such as {x.__name__}.from_pretrained(...)"
    if isinstance(x, (tuple, list, dict)):
        return f"a {type(x).__name__} is not a model; pass the model alone, without its tokenizer"
    if isinstance(x, nn.Module):
        part = next(((n, m) for n, m in x.named_modules() if isinstance(m, PreTrainedModel)), None)
        if part is not None:
            return f"{type(x).__name__} is not a transformers model; extend the one inside it, its part {part[0]!r}"
    return f"longspan extends transformers models (PreTrainedModel), not {type(x).__name__}"


def refuse_other_kinds(model: PreTrainedModel) -> None:
    """Raise ``AttachError`` for a model that does not go on with a text from left to right."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise AttachError(
            f"{type(model).__name__} is an encoder-decoder; longspan extends decoder-only models (AutoModelForCausalLM)"
        )
    for name, module in model.named_modules():
        if isinstance(getattr(module, "indexer", None), nn.Module):
            raise AttachError(
                f"{name} ({type(module).__name__}) selects the keys of each query with an indexer of its own, which "
                "scores them at the model's own positions; longspan extends attention to all keys"
            )


def decoder_of(model: PreTrainedModel, modules: list[nn.Module]) -> nn.Module:
    """The innermost model that holds all attention modules, whose forward makes the cache and the masks."""
    holding: list[nn.Module] = [
        m for m in model.modules() if isinstance(m, PreTrainedModel) and set(modules) <= set(m.modules())
    ]
    return holding[-1]
