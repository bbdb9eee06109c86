"""The file of a segment: all streams of some tokens, each head's own one after the other."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from longspan.deferred import torch
from longspan.documents.manifest import SCALES, Segment, Stream, StreamSpan
from longspan.errors import DocumentError
from longspan.machine.parts import ALIGN, Part, read_into, unit

if TYPE_CHECKING:
    from torch import Tensor

_EDGE = 4096  # bytes at both ends of a stream that are checked at every opening
_MOST_ENTRIES = 64  # of an index, for each token
_AT_ONCE = 2**22  # bytes that are read for a checksum at a time
# Bytes of a number by torch's name of its type, which `longspan verify` knows without torch.
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
_FLOATS = _BYTES.keys() - {"float8_e4m3fn", "float8_e5m2"}  # in which keys and values are computed
_BYTES |= {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}


def bytes_of(stream: Stream) -> int:
    """Bytes of one entry of one head."""
    return stream.width * _BYTES[stream.dtype]


def plan(start: int, room: int, starts: Sequence[int], rooms: Sequence[int]) -> Segment:
    """A segment of the tokens from ``start`` on, up to ``room``, in which nothing is yet.

    Args:
        starts: entries of each stream that are in earlier segments.
        rooms: entries of each stream when the segment is full.
    """
    spans = (StreamSpan(a, a, b, "", "") for a, b in zip(starts, rooms, strict=True))
    return Segment(start, start, room, tuple(spans))


def parts(streams: Sequence[Stream], segment: Segment, file: int) -> Iterator[Part]:
    """Where each stream lies in the file, with the entries that it has."""
    at = 0
    for stream, span in zip(streams, segment.spans, strict=False):
        first, row = _first(stream, span), _row(stream, span)
        yield Part(file, at, row, first, span.stop)
        at += stream.heads * row


def size_of(streams: Sequence[Stream], segment: Segment) -> int:
    """Bytes of the file."""
    return sum(stream.heads * _row(stream, span) for stream, span in zip(streams, segment.spans, strict=False))


def put(streams: Sequence[Stream], segment: Segment, file: int, views: Sequence[Tensor]) -> Segment:
    """Write the entries that a segment does not have yet, and give the segment that has them.

    Args:
        views: ``[H, N, W]``, all entries of each stream from the first token on.

    Raises:
        OSError: the disk is full; what the segment had is there.
    """
    spans = []
    for stream, span, part, held in zip(streams, segment.spans, parts(streams, segment, file), views, strict=True):
        low, high, size = part.first if span.stop == span.start else span.stop, held.shape[1], bytes_of(stream)
        if high > span.room:
            raise ValueError(f"layer {stream.layer}, {stream.name}: {high} entries, but room for {span.room}")
        for head in range(stream.heads):
            data = held[head, low:high].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            write_at(file, part.offset + head * part.row_bytes + (low - part.first) * size, data)
        spans.append(replace(span, stop=high))
    return replace(segment, spans=tuple(spans))


def sealed(streams: Sequence[Stream], segment: Segment, file: int) -> Segment:
    """The segment with the checksums of what is in its file."""
    digests = [(whole(s, p), edges(s, p)) for s, p in zip(streams, parts(streams, segment, file), strict=False)]
    spans = zip(segment.spans, digests, strict=True)
    return replace(segment, spans=tuple(replace(span, sha256=a, edges=b) for span, (a, b) in spans))


def whole(stream: Stream, part: Part) -> str:
    """SHA-256 over the entries of a stream in a segment, head after head."""
    digest, size = hashlib.sha256(), (part.stop - part.first) * bytes_of(stream)
    room = memoryview(bytearray(min(size, _AT_ONCE)))
    for head in range(stream.heads):
        for at in range(0, size, _AT_ONCE):
            own = room[: min(_AT_ONCE, size - at)]
            read_into(part.file, part.offset + head * part.row_bytes + at, own)
            digest.update(own)
    return digest.hexdigest()


def edges(stream: Stream, part: Part) -> str:
    """SHA-256 over the first bytes of the first head and the last ones of the last head."""
    size = (part.stop - part.first) * bytes_of(stream)
    own = min(size, _EDGE)
    if not stream.heads:
        return hashlib.sha256().hexdigest()
    room = memoryview(bytearray(2 * own))
    read_into(part.file, part.offset, room[:own])
    last = part.offset + (stream.heads - 1) * part.row_bytes
    read_into(part.file, last + size - own, room[own:])
    return hashlib.sha256(room).hexdigest()


class SegmentChecksums:
    """Checksums of a segment that is being written: of each stream, over the SHA-256 of each of its heads.

    Only what is new is read, so keeping a reading after every prefill chunk reads each byte once.
    """

    def __init__(self) -> None:
        self._heads: list[list[Any]] = []  # of each stream, a digest for each head
        self._stops: list[int] = []

    def sums(self, streams: Sequence[Stream], segment: Segment, file: int) -> list[str]:
        """The checksums of what the segment has now, at least what it had at the call before."""
        found = []
        room = memoryview(bytearray(_AT_ONCE))
        for n, (stream, part) in enumerate(zip(streams, parts(streams, segment, file), strict=False)):
            if n == len(self._heads):
                self._heads.append([hashlib.sha256() for _ in range(stream.heads)])
                self._stops.append(part.first)
            low, size = (self._stops[n] - part.first) * bytes_of(stream), (part.stop - part.first) * bytes_of(stream)
            for head, digest in enumerate(self._heads[n]):
                for at in range(low, size, _AT_ONCE):
                    own = room[: min(_AT_ONCE, size - at)]
                    read_into(file, part.offset + head * part.row_bytes + at, own)
                    digest.update(own)
            self._stops[n] = part.stop
            found.append(hashlib.sha256(b"".join(digest.digest() for digest in self._heads[n])).hexdigest())
        return found


def check(streams: Sequence[Stream], segments: Sequence[Segment], tokens: int, *, unfinished: bool = False) -> None:
    """Raise ``DocumentError`` unless segments follow each other, and each stream in them, up to ``tokens`` tokens.

    Args:
        unfinished: they may end earlier, and the last segment may have room for more.
    """
    for stream in streams:
        sized = 0 < stream.heads <= 2**20 and 0 < stream.width <= 2**24
        known = stream.dtype in _BYTES and (not stream.stands_for or stream.stands_for in _FLOATS)
        if not sized or not known:
            raise DocumentError(f"layer {stream.layer}, {stream.name}: no stream has this size and type: {stream}")
    _check_scales(streams)
    at, entries = 0, [0] * len(streams)
    for n, segment in enumerate(segments):
        open_end = unfinished and segment is segments[-1] and segment.stop <= segment.room <= tokens
        full = segment.stop == segment.room or open_end
        if segment.start != at or not at < segment.stop or not full or len(segment.spans) > len(streams):
            raise DocumentError(f"segment {n} is of tokens {segment.start} to {segment.stop}, and {at} are before it")
        for k, (stream, span) in enumerate(zip(streams, segment.spans, strict=False)):
            fits = span.start == entries[k] <= span.stop <= span.room <= _MOST_ENTRIES * segment.room
            if not fits or (stream.by_token and span.stop != segment.stop):
                raise DocumentError(
                    f"segment {n} has entries {span.start} to {span.stop} of layer {stream.layer}, {stream.name}, and "
                    f"{entries[k]} are before it"
                )
            entries[k] = span.stop
        if any(entries[len(segment.spans) :]):
            raise DocumentError(f"segment {n} has {len(segment.spans)} streams, fewer than the one before")
        at = segment.stop
    if at > tokens or (at < tokens and not unfinished):
        raise DocumentError(f"its segments hold {at} tokens, and it has {tokens}")


def _check_scales(streams: Sequence[Stream]) -> None:
    by_name = {(one.layer, one.name): one for one in streams}
    for stream in streams:
        if not stream.stands_for:
            continue
        scales = by_name.get((stream.layer, stream.name + SCALES))
        width = stream.width if stream.name.startswith("keys") else 1
        found = scales is not None and (scales.heads, scales.width, scales.dtype) == (stream.heads, width, "float32")
        if stream.dtype != "int8" or not found:
            raise DocumentError(f"layer {stream.layer}, {stream.name}: it has no scales of its size and type: {stream}")


def _first(stream: Stream, span: StreamSpan) -> int:
    """Entries begin at a page, so those that share one with earlier entries are written once more."""
    step = unit(bytes_of(stream))
    return span.start // step * step


def _row(stream: Stream, span: StreamSpan) -> int:
    return -(-(span.room - _first(stream, span)) * bytes_of(stream) // ALIGN) * ALIGN


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put ``path`` into errors that name no file: those of writing and syncing an open one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error


def write_at(file: int, at: int, data: memoryview) -> None:
    """Write bytes to a place in a file."""
    done = 0
    while done < len(data):
        if hasattr(os, "pwrite"):
            more = os.pwrite(file, data[done : done + 2**30], at + done)
        else:  # Windows
            os.lseek(file, at + done, os.SEEK_SET)
            more = os.write(file, data[done : done + 2**30])
        if not more:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += more
