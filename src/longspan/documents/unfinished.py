"""A reading that is kept in a folder after every prefill chunk, and taken up again from there."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from longspan.documents.contents import Contents
from longspan.documents.facts import difference
from longspan.documents.folder import READING, Folder, data_name, open_data
from longspan.documents.manifest import Facts, Manifest, Segment
from longspan.documents.segments import SegmentChecksums, check
from longspan.documents.state import state_bytes, state_from
from longspan.errors import DocumentError


class Reading:
    """Keeps a reading in a folder after every prefill chunk, so that it can be taken up again; see ``reading.Target``.

    Args:
        facts: of the document that the reading ends in.
        before: the document in the folder, which the reading appends to; None if there is none.
    """

    def __init__(self, folder: Folder, facts: Facts, before: Manifest | None = None) -> None:
        self._folder, self._facts = folder, facts
        self._sealed = () if before is None else before.segments
        self._named = set() if before is None else folder.named(before)
        self._running: defaultdict[int, SegmentChecksums] = defaultdict(SegmentChecksums)  # of each segment

    def open(self, number: int) -> Any:
        return self._folder.open(data_name(number), write=True)

    def path(self, number: int) -> str:
        return str(self._folder.path / data_name(number))

    def keep(self, contents: Contents) -> None:
        """Write what was read to the disk, then the record of it."""
        for file in contents.data[len(self._sealed) :]:
            os.fsync(file.fileno())
        name = _state_name(contents.tokens)
        stored = {name: self._folder.write(name, state_bytes(contents.state))}
        summed = self._summed(contents.streams, contents.segments, contents.data)
        manifest = Manifest(self._facts, contents.streams, summed, stored, None)
        self._folder.write(READING, manifest.to_json().encode())
        self._folder.clean(self._named | {name, READING, *(data_name(n) for n in range(len(contents.segments)))})

    def taken_up(self, contents: Contents) -> Contents:
        """``contents``, with what an earlier reading of the same text has kept of it, every byte of it checked.

        Raises:
            DocumentError: it was of another text, model or method, or is not what was written.
        """
        begun = self._folder.unfinished()
        if begun is None:
            return contents
        differs = difference(begun.facts, self._facts)
        if differs is not None:
            raise DocumentError(
                f"{self._folder}: holds an unfinished reading of another {differs}; run that reading again, or "
                f"{self._folder.way_to_begin_anew()}"
            )
        try:
            return self._checked(contents, begun)
        except DocumentError as error:
            why = str(error).removeprefix(f"{self._folder}: ").partition(";")[0]
            raise DocumentError(
                f"{self._folder}: the saved part of its reading cannot be used ({why}); "
                f"{self._folder.way_to_begin_anew()}"
            ) from None

    def _checked(self, contents: Contents, begun: Manifest) -> Contents:
        check(begun.streams, begun.segments, begun.facts.tokens, unfinished=True)
        first = len(self._sealed)
        if begun.segments[:first] != self._sealed:
            raise DocumentError("the document to which it appends has changed")
        name = _state_name(begun.tokens)
        if begun.files.keys() != {name}:
            raise DocumentError(f"{READING} names the files {sorted(begun.files)}, not {name}")
        with ExitStack() as opened:  # closed if anything is refused
            new = [
                opened.enter_context(open_data(self._folder, begun, n, change=True))
                for n in range(first, len(begun.segments))
            ]
            contents = self._summed_as(contents, begun, name, (*contents.data[:first], *new))
            opened.pop_all()
        return contents

    def _summed_as(self, contents: Contents, begun: Manifest, name: str, data: tuple[Any, ...]) -> Contents:
        """``contents`` with the segments of ``begun`` in the files ``data``, whose checksums are compared.

        Args:
            name: the file of its state.
        """
        first = len(self._sealed)
        size = sum(os.fstat(file.fileno()).st_size for file in data)
        state = state_from(self._folder.read(name, begun.files[name], data=size))
        bare = tuple(
            replace(segment, spans=tuple(replace(span, sha256="") for span in segment.spans))
            for segment in begun.segments[first:]
        )
        segments = (*self._sealed, *bare)
        summed = self._summed(begun.streams, segments, data)
        for n, (one, other) in enumerate(zip(begun.segments, summed, strict=True)):
            if one != other:
                raise DocumentError(f"{data_name(n)} is not what was written, its checksum differs")
        return replace(contents, streams=begun.streams, segments=segments, data=data, state=state)

    def _summed(self, streams: Sequence[Any], segments: Sequence[Segment], data: Sequence[Any]) -> tuple[Segment, ...]:
        """The segments with the checksums of what they have so far; those of the document before have theirs."""
        summed = list(self._sealed)
        for n, (segment, file) in list(enumerate(zip(segments, data, strict=True)))[len(self._sealed) :]:
            sums = self._running[n].sums(streams, segment, file.fileno())
            spans = zip(segment.spans, sums, strict=True)
            summed.append(replace(segment, spans=tuple(replace(span, sha256=digest) for span, digest in spans)))
        return tuple(summed)


def _state_name(tokens: int) -> str:
    return f"reading-{tokens:012}.safetensors"
