"""The form of a model's matrices in memory: numbers of a dtype, or codes."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.deferred import transformers
from longspan.errors import LongspanError, did_you_mean
from longspan.loading.gguf import packed_folder, read_header, weights_folder
from longspan.machine.cpu import multiplies_bfloat16
from longspan.weights import FORMS, MIXED

if TYPE_CHECKING:
    import torch

WEIGHTS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # forms that are dtypes


def form_of(weights: str, dtype: str) -> tuple[str, str]:
    """The form of the matrices, one of ``FORMS`` or ``"auto"``, and the dtype that a form may stand for."""
    forms = ("auto", *FORMS, *WEIGHTS)
    if weights not in forms:
        raise LongspanError(
            f"--weights must be one of {', '.join(forms)}, not {weights!r}{did_you_mean(weights, forms)}"
        )
    if weights not in WEIGHTS:
        return weights, dtype
    if dtype not in ("auto", WEIGHTS[weights]):
        raise LongspanError(
            f"--weights {weights} is --dtype {WEIGHTS[weights]}, and --dtype says {dtype}; leave one out"
        )
    return "auto", WEIGHTS[weights]


def from_gguf(
    file: Path, weights: str, dtype: str, device: torch.device, quiet: bool, bare: bool
) -> tuple[str, transformers.PreTrainedModel]:
    """The model of a GGUF file, and the folder of its copy."""
    from transformers import AutoModelForCausalLM

    header = read_header(file)
    fast = _slow_because(device) is None and not header.has_experts
    if weights == "auto" and (dtype == MIXED or (dtype == "auto" and fast)):
        weights = "as-is"
    packs = weights != "auto" and (weights != "as-is" or header.quantised)
    _refuse_mixed(dtype, device, packs)
    if not packs:
        folder = str(weights_folder(file, dtype, quiet=quiet))
        if bare:
            return folder, _bare(folder, dtype, {"attn_implementation": "sdpa"})
        return folder, AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    from longspan.loading.packed import packed_model

    _say_if_slow(device)
    packed, computed = packed_folder(file, weights, quiet=quiet), _computing_dtype(dtype, device)
    if bare:
        return str(packed), _bare(str(packed), computed, {"attn_implementation": "sdpa"})
    return str(packed), _computing(packed_model(packed, weights, _numbers(computed)), computed)


def from_folder(
    source: str, weights: str, dtype: str, device: torch.device, bare: bool
) -> transformers.PreTrainedModel:
    """The model of a folder of transformers, or of a name on the hub."""
    import torch
    from transformers import AutoModelForCausalLM

    packs = weights in ("int8", "int4")
    _refuse_mixed(dtype, device, packs)
    if bare:
        return _bare(source, _computing_dtype(dtype, device) if packs else dtype, {})
    if not packs:
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    from longspan.weights.models import pack

    _say_if_slow(device)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")  # one rounding, not two
    pack(model, weights)
    computed = _computing_dtype(dtype, device)
    return _computing(model.to(getattr(torch, _numbers(computed))), computed)


def _slow_because(device: torch.device) -> str | None:
    """Why no kernel multiplies packed matrices here, so that every token unpacks all of them; None if one does."""
    from longspan.kernels import cpu

    return cpu.unavailable_reason() if device.type == "cpu" else f"the kernel is for a CPU, not {device.type}"


def _say_if_slow(device: torch.device) -> None:
    reason = _slow_because(device)
    if reason is not None:
        warnings.warn(
            f"each token unpacks all packed weights, which is slow ({reason}); --weights bf16 does not", stacklevel=2
        )


def _refuse_mixed(dtype: str, device: torch.device, packs: bool) -> None:
    if dtype == MIXED and device.type != "cpu":
        raise LongspanError(f"--dtype {MIXED} is for a CPU, not {device.type}: take --device cpu, or another dtype")
    if dtype == MIXED and not packs:
        raise LongspanError(
            f"--dtype {MIXED} is for packed weights, which these are not; add --weights int8 or int4, or take --dtype "
            "float32"
        )


def _computing_dtype(dtype: str, device: torch.device) -> str:
    """What a model with packed matrices computes in, unless told."""
    if dtype != "auto":
        return dtype
    return MIXED if device.type == "cpu" else "bfloat16"


def _numbers(dtype: str) -> str:
    """The dtype of a model's numbers outside of packed matrices."""
    return "float32" if dtype == MIXED else dtype


def _computing(model: transformers.PreTrainedModel, dtype: str) -> transformers.PreTrainedModel:
    """Let a model with packed matrices compute so."""
    if dtype == MIXED:
        import torch

        from longspan.weights.models import mix

        mix(model, torch.float16, torch.bfloat16 if multiplies_bfloat16() else None)
    return model


def _bare(source: str, dtype: str, more: dict[str, str]) -> transformers.PreTrainedModel:
    """A model without weights, with the config, the types and the generation config of one that has them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(source)
    own = getattr(config, "dtype", None) or torch.float32
    kept, dtype = dtype, _numbers(dtype)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=own if dtype == "auto" else getattr(torch, dtype), **more
        )
    model.tie_weights()  # else shared weights count twice
    with suppress(OSError):  # it has none of its own
        model.generation_config = GenerationConfig.from_pretrained(source)
    return _computing(model, kept)
