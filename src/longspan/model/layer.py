"""An attention layer of a model, and the arguments that every model passes to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import LongspanError
from longspan.rope import Rope


@dataclass
class Layer:
    """One attention layer as probed: attachable with its ``rope``, or stock for a ``reason``.

    ``heads`` and ``kv_heads`` are those that this process has.
    """

    module: nn.Module
    name: str
    index: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    itemsize: int
    sliding: int | None = None  # tokens, 0 if the model does not state it
    rope: Rope | None = None
    reason: str | None = None
    norms: tuple[nn.Module, nn.Module] | None = None
    kept_as: torch.dtype | None = None  # what fp32 queries, keys and values are rounded to, if they are

    def keep_as(self, dtype: torch.dtype | None) -> None:
        """Round fp32 queries, keys and values to this dtype; None leaves them as they are."""
        if dtype is not None and self.itemsize == torch.float32.itemsize:
            self.kept_as, self.itemsize = dtype, dtype.itemsize

    def rounded(self, x: Tensor) -> Tensor:
        """Queries, keys or values, of any shape, as they are kept.

        Raises:
            LongspanError: they are beyond a quarter of the range of that dtype: a rotation, with the factor of scaled
                angles, may make a number larger.
        """
        if self.kept_as is None:
            return x
        found, most = x.to(self.kept_as), torch.finfo(self.kept_as).max / 4
        if not float(torch.linalg.vector_norm(found, torch.inf)) <= most:
            raise LongspanError(
                f"{self.name}: queries, keys or values are not finite, or beyond {most:,.0f}, which {self.kept_as} "
                "holds before and after their rotation: load the model with dtype='float32' or 'bfloat16'"
            )
        return found

    def weights(self, sinks: Tensor | None) -> Iterator[Tensor]:
        """``sinks`` ``[H]`` and the parameters of the norms: what attention has beside queries, keys and values."""
        if sinks is not None:
            yield sinks
        for norm in self.norms or ():
            yield from norm.parameters()


def unrotated(position_embeddings: Any) -> Any:
    """``position_embeddings`` of the same form that rotate by nothing; takes no memory."""
    if isinstance(position_embeddings, Tensor):  # complex
        return _filled(1, position_embeddings)
    cos, sin = position_embeddings
    return _filled(1, cos), _filled(0, sin)


def _filled(value: int, like: Tensor) -> Tensor:
    return _number(value, like.dtype, like.device).expand(like.shape)


@cache  # every step asks for the same; and a recorded one reads it for as long as it is replayed
@torch.inference_mode(False)  # for steps outside inference mode too
def _number(value: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def scaling(module: nn.Module, kwargs: dict[str, Any]) -> float:
    """The factor on the scores, which every model passes to its attention function."""
    factor = kwargs.get("scaling")
    return float(factor if factor is not None else module.head_dim**-0.5)  # type: ignore[operator]
