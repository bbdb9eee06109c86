"""The streams of a document in int8: codes are made of new tokens once, and a cache reads them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from longspan.documents.manifest import SCALES, Segment, Stream
from longspan.errors import CacheError, DocumentError
from longspan.machine.parts import Part
from longspan.memory.buffer import Buffer, Tier
from longspan.memory.mapped import Kind, TokenBlock
from longspan.memory.quantised import (
    BLOCK,
    Codes,
    Quantised,
    dequantised,
    quantised_keys,
    quantised_values,
)
from longspan.memory.segments import lay

_HOST = torch.device("cpu")


class Coder:
    """Makes codes of new tokens, behind those of earlier tokens that lie in files.

    Args:
        streams: those that have earlier tokens. parts: where these lie, in the order of the streams.
    """

    def __init__(self, streams: Sequence[Stream], parts: Sequence[Sequence[Part]]) -> None:
        self._earlier = {(one.layer, one.name): own for one, own in zip(streams, parts, strict=True)}

    def coded(self, layer: int, name: str, new: Tensor, room: int) -> Iterator[tuple[str, Tensor, int]]:
        """The streams that a stream of new tokens ``[1, H, T, D]`` is kept as, with the earlier ones before them.

        Args:
            room: tokens that will follow these.

        Yields:
            A name, ``[1, H, N, W]``, and the most entries that there will be.

        Raises:
            DocumentError: a number is infinite or NaN.
        """
        of_keys = name.startswith("keys")
        try:
            codes, scales = (quantised_keys if of_keys else quantised_values)(new.cpu())
        except CacheError as error:
            raise DocumentError(f"layer {layer}, {name}: {error}") from error
        step = BLOCK if of_keys else 1
        for own, made, more in ((name, codes, room), (name + SCALES, scales, -(-room // step))):
            whole = self._behind(layer, own, made)
            yield own, whole, whole.shape[2] + more

    def _behind(self, layer: int, name: str, new: Tensor) -> Tensor:
        parts = self._earlier.get((layer, name), ())
        count = max((part.stop for part in parts), default=0)
        if not count:
            return new
        block = lay(Kind.of(new), parts, count, host=True, access="in order")
        stop = count + new.shape[2]
        if not block.widen(stop):
            return torch.cat((block.part(0, count), new), dim=2)
        block.write(count, new)
        return block.part(0, stop)


def rows_of(segments: Iterable[Segment]) -> Tensor:
    """The row of scales of each token's keys, ``[N]`` int64: blocks are counted from the first token of a segment."""
    rows, first = [torch.empty(0, dtype=torch.int64)], 0
    for segment in segments:
        count = segment.stop - segment.start
        rows.append(first + torch.arange(count) // BLOCK)
        first += -(-count // BLOCK)
    return torch.cat(rows)


def read_back(
    streams: Sequence[Stream],
    parts: Sequence[Sequence[Part]],
    segments: Sequence[Segment],
    device: torch.device,
    *,
    keep: bool,
    tier: Tier,
    directory: Path | None,
) -> dict[tuple[int, str], TokenBlock]:
    """The tokens of streams in int8, for a cache of a model on ``device``.

    Args:
        keep: leave them in int8, mapped, for methods that choose; else they are dequantised into the cache's memory.
        tier: where that lies. directory: for ``"disk"``.

    Raises:
        DocumentError: a stream has more or fewer scales than its tokens need.
    """
    by_name = {(one.layer, one.name): (one, own) for one, own in zip(streams, parts, strict=True)}
    rows = rows_of(segments)
    blocks: dict[tuple[int, str], TokenBlock] = {}
    for (layer, name), (stream, own) in by_name.items():
        if not stream.stands_for:
            continue
        count = max((part.stop for part in own), default=0)
        scaled = by_name[layer, name + SCALES]
        of_keys = name.startswith("keys")
        entries = max((part.stop for part in scaled[1]), default=0)
        wanted = (int(rows[-1]) + 1 if len(rows) else 0) if of_keys else count
        if entries != wanted or count != len(rows):
            raise DocumentError(
                f"layer {layer}, {name}: its scales are not those of {count:,} tokens; it was made by hand, read the "
                "text again"
            )
        if not count:
            continue
        laid = [
            lay(Kind(1, one.heads, one.width, dtype, _HOST), at, n, host=True, access="few" if keep else "in order")
            for one, at, n, dtype in ((stream, own, count, torch.int8), (*scaled, entries, torch.float32))
        ]
        codes = Codes(laid[0].part(0, count), laid[1].part(0, entries), rows if of_keys else None)
        kind = Kind(1, stream.heads, stream.width, getattr(torch, stream.stands_for), device)
        if keep:
            blocks[layer, name] = Quantised(kind, codes, count)
        else:
            buffer = Buffer(tier, directory)
            buffer.reserve(torch.empty(1, kind.heads, 0, kind.size, dtype=kind.dtype, device=device), count)
            blocks[layer, name] = dequantised(buffer.reserved, codes, count)
    return blocks
