"""How a model is split over processes, as its weights and the heads of its layers say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.attend import Ranks
from longspan.calibration import Calibration, Projection
from longspan.errors import AttachError
from longspan.model.layer import Layer
from longspan.model.unwrap import is_a

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def split_reason(model: nn.Module) -> str | None:
    """Why what needs all of a model cannot be done in this process, or None."""
    processes = max((weight.device_mesh.size() for _, weight in _split_weights(model)), default=1)
    return None if processes == 1 else f"the model's weights are split over {processes} processes"


def whole(weight: Tensor) -> Tensor:
    """A weight of any shape with the parts that other processes hold.

    All of them call this, for the same weights in one order.
    """
    return weight.full_tensor() if is_distributed(weight) else weight  # type: ignore[attr-defined]


def refuse_pipelined(model: nn.Module) -> None:
    """Raise ``AttachError`` if other processes run some of a model's layers."""
    stand_in = "transformers.distributed.pipeline_parallel", "PipelineIdentityLayer"
    if any(is_a(module, *stand_in) for module in model.modules()):
        raise AttachError(
            f"{type(model).__name__}: other processes run some of its layers (pipeline parallelism), and longspan "
            "cannot reach these; split the model with tp_plan, or spread its layers over devices with device_map"
        )


def refuse_uneven(model: PreTrainedModel) -> None:
    """Raise ``AttachError`` if a process has parts of heads; for a model that does not run."""
    for name, module in model.named_modules():
        size = getattr(module, "head_dim", None)
        if not isinstance(size, int) or not hasattr(module, "layer_idx"):
            continue
        for projection, weight in _split_weights(module):
            part, mesh = projection.split(".")[0], weight.device_mesh
            if part not in _PROJECTIONS or "tp" not in (mesh.mesh_dim_names or ()):
                continue
            dim, heads = mesh.mesh_dim_names.index("tp"), weight.shape[0] // size
            if weight.placements[dim].is_shard(0) and heads % mesh.size(dim):
                raise AttachError(
                    f"{name}.{part}: {heads} heads are split over {mesh.size(dim)} processes, not a whole number "
                    f"of heads each; use a number of processes that divides {heads}"
                )


def ranks_of(model: PreTrainedModel, layers: Sequence[Layer], selects: bool) -> Ranks | None:
    """The processes that the attached layers' heads are split over; None if this process has all of them.

    Args:
        selects: whether the method chooses keys, for which the ranks have to be known; None if it does not and they
            are not.

    Raises:
        AttachError: they are split in a way that longspan does not know; it says which.
    """
    if selects:
        return _find(model, layers)
    with suppress(AttachError):  # each head attends by itself, wherever the others are
        return _find(model, layers)
    return None


def _find(model: PreTrainedModel, layers: Sequence[Layer]) -> Ranks | None:
    if not (dist.is_available() and dist.is_initialized()):
        return None
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", None)
    split = [layer for layer in layers if layer.rope is not None and layer.heads != heads]
    if not isinstance(heads, int) or not split:
        return None
    found = None
    for layer in split:
        has = f"{layer.name} has {layer.heads} of {heads} query heads in this process"
        weights = dict(_split_weights(layer.module))
        weight = next(iter(weights.values()), None)
        if weight is None:
            raise AttachError(
                f"{has}, and its weights do not say which processes have the others; split the model with "
                "transformers' tp_plan"
            )
        ranks = _ranks(layer.name, weight)
        if layer.heads * ranks.size != heads:
            raise AttachError(
                f"{has}, which does not divide evenly over {ranks.size} processes; use a number that divides it"
            )
        if hasattr(layer.module, "k_proj") and "k_proj.weight" not in weights:
            raise AttachError(
                f"{has} and all key heads, so that groups of heads lie in several processes; split k_proj and v_proj "
                "too, as tp_plan='auto' does"
            )
        if found is not None and found.size != ranks.size:
            raise AttachError(f"{has}, but other layers are split differently; split all layers in the same way")
        found = ranks if found is None else found
    return found


def least(model: PreTrainedModel, count: int | None, device: torch.device) -> int | None:
    """The least of the processes' counts, so that all decide alike; None if a process does not know its own."""
    name, weight = next(_split_weights(model), ("", None))
    if weight is None:
        return count
    ranks = _ranks(name, weight)
    counts = torch.zeros(ranks.size, dtype=torch.float64, device=device)
    counts[ranks.rank] = -1 if count is None else count
    smallest = int(ranks.sum(counts).min())
    return None if smallest < 0 else smallest


def own_part(calibration: Calibration, ranks: Ranks) -> Calibration:
    """The maps of this rank's key heads."""
    layers, heads = {}, {}
    for index, maps in calibration.heads.items():
        count, _, channels = maps.theta_k.shape
        first, last = (count * n // ranks.size for n in (ranks.rank, ranks.rank + 1))
        heads[index] = Projection(*(x[first:last].contiguous() for x in (maps.theta_q, maps.theta_k)))
        of_layer, own = calibration.layers[index], slice(first * channels, last * channels)
        layers[index] = Projection(*(x[:, own].contiguous() for x in (of_layer.theta_q, of_layer.theta_k)))
    return replace(calibration, layers=layers, heads=heads)


def _ranks(name: str, weight: Any) -> Ranks:
    """From a weight of a layer that has a share of its heads."""
    mesh = weight.device_mesh
    dims = [dim for dim, placement in enumerate(weight.placements) if placement.is_shard() and mesh.size(dim) > 1]
    named = mesh.mesh_dim_names or ()
    dims = [named.index("tp")] if "tp" in named else dims
    if len(dims) != 1:
        raise AttachError(f"{name}: its weights are split in {len(dims)} ways at once; split it with tp_plan alone")
    group = mesh.get_group(dims[0])

    def sum_over_ranks(x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    return Ranks(mesh.get_local_rank(dims[0]), mesh.size(dims[0]), sum_over_ranks)


def _split_weights(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The distributed weights of a module, each by its name, of which this process has a part."""
    for name, x in module.named_parameters():
        weight: Any = x
        if is_distributed(weight) and weight.device_mesh.size() > 1 and any(p.is_shard() for p in weight.placements):
            yield name, weight


def is_distributed(weight: Tensor) -> bool:
    """Whether a weight of any shape is a ``DTensor``."""
    return is_a(weight, "torch.distributed.tensor", "DTensor")
