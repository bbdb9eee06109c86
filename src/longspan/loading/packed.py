"""GGUF files converted to packed matrices, and opened.

transformers' reader says what a GGUF file's tensors are called and what it does to their values; only the matrices are
not dequantised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils.logging import tqdm

from longspan import files
from longspan.errors import LongspanError
from longspan.kernels.linear.contract import PackedMatrix
from longspan.loading.header import PLAIN, Header
from longspan.weights.blocks import packed_blocks
from longspan.weights.models import bits_of, fits, mark, place, tie
from longspan.weights.modules import PackedEmbedding, PackedLinear
from longspan.weights.rounding import rounded

_FILES = "packed-{:03}.safetensors"
_FILE_BYTES = 2**29  # about as many are in memory at a time while a file is converted


def convert(header: Header, config: Any, form: str, folder: Path) -> None:
    """Write a GGUF file's model with packed matrices, for ``packed_model``.

    Matrices in blocks of other kinds than ``packed_blocks`` reads are packed in int8, which is finer than they are.
    What is no matrix of a plain linear or embedding module is dequantised.

    Args:
        config: of the model.
        form: of ``longspan.weights.FORMS``.

    Raises:
        LongspanError: the file has a tensor that the model has no place for, lacks one, or holds mixtures of experts.
    """
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    model = _empty(config, torch.float32)
    processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(config=config.to_dict())
    names = get_gguf_hf_weights_map(model, processor)
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    state, written, placed = dict[str, Tensor](), set[str](), 0
    for name, tensor in tqdm(header.weights.items(), desc="Packing", unit="matrix"):
        target = names.get(name)
        if len(tensor.shape) > 2:
            raise LongspanError(
                f"{header.file}: {name} is of a mixture of experts, which cannot stay packed; dequantise it: --weights "
                "fp32, or bf16 for half of the memory"
            )
        if target is None:
            continue  # which is found below
        placed += int(tensor.n_elements)
        module_name, _, part = target.rpartition(".")
        wanted = model.get_parameter(target).shape
        if tuple(map(int, reversed(tensor.shape))) != tuple(wanted):
            raise LongspanError(f"{header.file}: the file has in another shape what the model calls {target}")
        module = model.get_submodule(module_name)
        kept = form == "as-is" and tensor.tensor_type.name in PLAIN
        if kept or part != "weight" or not fits(module):
            state[target] = _processed(processor, name, _dequantised(tensor))
        else:
            bits = bits_of(form, module, ends)
            state |= _parts(module_name, _packed(f"{header.file}: {name}", processor, name, tensor, bits))
        if sum(x.nbytes for x in state.values()) > _FILE_BYTES:
            _write(header, state, folder, written)
    _write(header, state, folder, written)
    _check(header, model, written, placed)
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def _write(header: Header, state: dict[str, Tensor], folder: Path, written: set[str]) -> None:
    """Write some tensors into a file of their own, and empty ``state``."""
    for name, x in state.items():
        if x.is_floating_point() and not bool(x.isfinite().all()):
            raise LongspanError(f"{header.file}: {name} has numbers that are not finite; the file is damaged")
    if state:
        written |= set(state)
        files.write(folder / _FILES.format(len(list(folder.iterdir()))), save(state))
        state.clear()


def _packed(label: str, processor: Any, name: str, tensor: Any, bits: int | None) -> PackedMatrix:
    """A tensor of blocks, its rows in the model's order."""
    outs = int(tensor.shape[1])
    order = _processed(processor, name, np.arange(outs, dtype=np.float32)[:, None])[:, 0].long()
    if not torch.equal(order.sort().values, torch.arange(outs)):
        raise LongspanError(f"{label} cannot stay packed: transformers' reader changes its numbers; use --weights fp32")
    found = packed_blocks(tensor.data, tensor.tensor_type.name) if bits is None else None
    if found is None:
        found = rounded(_dequantised(tensor), bits or 8)
    return found if torch.equal(order, torch.arange(outs)) else found.permuted(order)


def _dequantised(tensor: Any) -> Any:
    import gguf

    return torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))


def _processed(processor: Any, name: str, weights: Any) -> Tensor:
    """What transformers' reader makes of a tensor's numbers."""
    found = processor.process(weights=np.asarray(weights), name=name)
    return torch.from_numpy(np.array(found.weights))


def _parts(module: str, matrix: PackedMatrix) -> dict[str, Tensor]:
    parts = {"weight": matrix.codes, "scales": matrix.scales, "minima": matrix.minima}
    return {f"{module}.{part}": x.contiguous() for part, x in parts.items() if x is not None}


def _check(header: Header, model: PreTrainedModel, written: set[str], placed: int) -> None:
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = sorted({name for name, _ in model.named_parameters(remove_duplicate=False)} - written - tied)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise LongspanError(f"{header.file}: the file lacks what the model calls {missing[0]}{more}")
    if placed != header.parameters:
        raise LongspanError(
            f"{header.file}: transformers' reader places {placed:,} numbers of its {header.parameters:,}, so the model "
            "would compute something else; load the model from a folder of transformers instead"
        )


def _empty(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model


def packed_model(folder: Path, form: str, dtype_name: str) -> PreTrainedModel:
    """The model that ``convert`` wrote; its packed matrices are mapped from the file.

    Args:
        form: that it was converted to.
        dtype_name: the dtype of everything that is not packed, and of what the model computes in.
    """
    dtype: torch.dtype = getattr(torch, dtype_name)
    model = _empty(AutoConfig.from_pretrained(folder), dtype)
    for path in sorted(folder.glob("packed-*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
        for name, tensor in tensors.items():
            module_name, _, part = name.rpartition(".")
            if part in ("scales", "minima"):
                continue
            scales = tensors.get(f"{module_name}.scales") if part == "weight" else None
            if scales is None:
                model.get_submodule(module_name).register_parameter(part, _fixed(tensor.to(dtype)))
            else:
                packed = PackedMatrix(tensor, scales, tensors.get(f"{module_name}.minima"))
                place(model, module_name, packed, dtype)
    head = model.get_output_embeddings()
    if type(head) is nn.Linear and head.weight.is_meta:  # the file has none of its own
        tie(model)
    for module in model.modules():
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):  # those that no file has, such as angles
            own = dict(module.named_buffers(recurse=False))
            module._buffers |= {name: torch.zeros_like(x, device="cpu") for name, x in own.items()}
            for buffer in filter(torch.is_floating_point, module.buffers(recurse=False)):
                buffer.fill_(torch.nan)
            model._init_weights(module)
    lacking = [name for name, x in (*model.named_parameters(), *model.named_buffers()) if _lacks(x)]
    if lacking:
        raise LongspanError(f"{folder}: nothing says what {lacking[0]} is; use --weights fp32")
    model.generation_config = GenerationConfig.from_pretrained(folder)
    if any(isinstance(module, PackedLinear | PackedEmbedding) for module in model.modules()):
        mark(model, form)
    return model


def _lacks(x: Tensor) -> bool:
    return x.is_meta or (x.is_floating_point() and bool(x.isnan().any()))


def _fixed(x: Tensor) -> nn.Parameter:
    fixed = nn.Parameter(x, requires_grad=False)
    fixed._is_hf_initialized = True  # type: ignore[attr-defined]  # so that transformers does not draw it anew
    return fixed
