"""Where a model's parts run, also those whose weights accelerate keeps elsewhere and brings for each forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from longspan.errors import AttachError


def devices_of(module: nn.Module) -> set[torch.device]:
    """Where a module's weights are when it runs."""
    # accelerate keeps offloaded weights on "meta" and says beside them where they run.
    offloaded = [device for part in module.modules() for device in _execution_devices(part)]
    return {x for x in (*(weight.device for weight in module.parameters()), *offloaded) if x.type != "meta"}


def runs_on(model: PreTrainedModel) -> torch.device:
    """The device that a model takes its tokens on.

    Raises:
        AttachError: its weights were never loaded.
    """
    embedding = model.get_input_embeddings()
    device: torch.device = embedding.weight.device
    if device.type != "meta":
        return device
    return next(iter(_execution_devices(embedding)), model.device)


def refuse_unloaded(model: PreTrainedModel) -> None:
    """Raise ``AttachError`` if weights are on the device "meta" and nothing would bring them."""
    if any(_hooks(part) for part in model.modules()):
        return
    name = next((name for name, weight in model.named_parameters() if weight.device.type == "meta"), None)
    if name is not None:
        raise AttachError(
            f"{type(model).__name__}: {name} is on the device 'meta', so its weights were never loaded; load them "
            "with from_pretrained, without init_empty_weights"
        )


@contextmanager
def present(module: nn.Module) -> Iterator[None]:
    """With the module's own buffers where it runs, as during its forward."""
    away = any(buffer.device.type == "meta" for buffer in module.buffers(recurse=False))
    hook: Any = getattr(module, "_hf_hook", None) if away else None
    if hook is None:
        yield
        return
    hook.pre_forward(module)
    try:
        yield
    finally:
        hook.post_forward(module, None)


def _hooks(module: nn.Module) -> list[Any]:
    """Hooks of accelerate around a module's forward."""
    hook = getattr(module, "_hf_hook", None)
    return [] if hook is None else [hook, *getattr(hook, "hooks", ())]


def _execution_devices(module: nn.Module) -> list[torch.device]:
    """Where accelerate runs a module."""
    devices = (getattr(hook, "execution_device", None) for hook in _hooks(module))
    return [torch.device(device) for device in devices if device is not None]
