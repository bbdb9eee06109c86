"""Spoil a document in every way: bits, lengths, swapped and linked files, other values in the manifest."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from longspan.documents.folder import MANIFEST


def spoilers(count: int) -> list[tuple[str, Callable[[Path, random.Random], None]]]:
    """``count`` ways to spoil a folder, each with its name."""
    kinds = [
        ("a bit of a segment", bit_of_data), ("a bit of the manifest", bit_of_manifest), ("a bit beside", bit_beside),
        ("a file cut short", cut), ("a longer file", longer), ("two files swapped", swapped), ("a link", link),
        ("a missing file", missing), ("a number of the manifest", number), ("a field less", field_less),
        ("a field more", field_more), ("another type", other_type), ("an absurd size", absurd), ("a path", path_of),
        ("nonsense", nonsense), ("nested deep", nested), ("another method", method), ("another dtype", dtype),
        ("a folder", folder), ("zeros", zeros),
        ("a value that cannot be", impossible), ("sources beyond the text", beyond),
    ]  # fmt: skip
    return [(f"{n}: {kinds[n % len(kinds)][0]}", kinds[n % len(kinds)][1]) for n in range(count)]


def bit_of_data(place: Path, r: random.Random) -> None:
    """A bit that counts: padding between heads is no part of a document."""
    from longspan.documents import segments
    from longspan.documents.manifest import parse

    manifest = parse((place / MANIFEST).read_bytes())
    number = r.randrange(len(manifest.segments))
    parts = list(segments.parts(manifest.streams, manifest.segments[number], -1))
    n = r.randrange(len(parts))
    stream, part = manifest.streams[n], parts[n]
    inside = r.randrange((part.stop - part.first) * segments.bytes_of(stream))
    flip(place / f"data-{number:04}.bin", part.offset + r.randrange(stream.heads) * part.row_bytes + inside, r)


def flip(path: Path, at: int, r: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0] ^ (1 << r.randrange(8))
        file.seek(at)
        file.write(bytes([byte]))


def bit_of_manifest(place: Path, r: random.Random) -> None:
    path = place / MANIFEST
    text = path.read_bytes()
    # What only names things for people changes no answer.
    passing = [text.index(b'"source"'), text.index(b'"machine"'), text.index(b'"longspan"')]
    lines = [text.count(b"\n", 0, at) for at in passing]
    while True:
        at = r.randrange(len(text))
        line = text.count(b"\n", 0, at)
        named = text.splitlines()[line].strip()
        if line not in lines and not named.startswith(b'"name"') and named and not text[at : at + 1].isspace():
            break
    flip(path, at, r)


def bit_beside(place: Path, r: random.Random) -> None:
    path = r.choice(sorted(p for p in place.iterdir() if p.suffix in (".safetensors", ".txt")))
    flip(path, r.randrange(path.stat().st_size), r)


def cut(place: Path, r: random.Random) -> None:
    path = r.choice(sorted(place.iterdir()))
    os.truncate(path, r.randrange(path.stat().st_size))


def longer(place: Path, r: random.Random) -> None:
    path = r.choice(sorted(p for p in place.iterdir() if p.name != MANIFEST))
    with path.open("ab") as file:
        file.write(b"\0" * r.choice([1, 4096]))


def swapped(place: Path, r: random.Random) -> None:
    one, other = r.sample(sorted(place.iterdir()), 2)
    one.rename(place / "x")
    other.rename(one)
    (place / "x").rename(other)


def link(place: Path, r: random.Random) -> None:
    path = r.choice(sorted(place.iterdir()))
    away = path.rename(place.parent / f"{place.name}-{path.name}")
    path.symlink_to(away)


def missing(place: Path, r: random.Random) -> None:
    r.choice(sorted(place.iterdir())).unlink()


def folder(place: Path, r: random.Random) -> None:
    path = r.choice(sorted(place.iterdir()))
    path.unlink()
    path.mkdir()


def zeros(place: Path, r: random.Random) -> None:
    path = r.choice(sorted(place.iterdir()))
    path.write_bytes(bytes(path.stat().st_size))


def edited(place: Path, change: Callable[[dict], None], r: random.Random, forged: float = 0.5) -> None:
    """The manifest with another value; ``forged`` of the time by somebody who also makes its checksum anew."""
    held = json.loads((place / MANIFEST).read_bytes())
    own = held.pop("sha256")
    change(held)
    if r.random() < forged:
        own = hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
    (place / MANIFEST).write_text(json.dumps({**held, "sha256": own}))


def leaves(held, want, path=()):
    """The paths of all values of a type."""
    items = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ()
    for key, value in items:
        if type(value) is want:
            yield (*path, key)
        yield from leaves(value, want, (*path, key))


def put(held, path, value):
    for key in path[:-1]:
        held = held[key]
    held[path[-1]] = value + 1 if held[path[-1]] == value else value  # what stays the same spoils nothing


def number(place: Path, r: random.Random) -> None:
    def change(held):
        # A room is an upper bound, and sources say where a text came from: those change no answer.
        places = [p for p in leaves(held, int) if "sources" not in p and p[-1] != "prefill_chunk"]
        put(held, r.choice(places), r.choice([0, 1, 7, 300, 2**31, 2**63, 10**40, -1]) + r.randrange(3, 9))

    edited(place, change, r)


def impossible(place: Path, r: random.Random) -> None:
    def change(held):
        held["facts"].update(r.choice([{"prefill_chunk": 0}, {"window": 0}, {"window": 2**40}]))

    edited(place, change, r, forged=1)


def beyond(place: Path, r: random.Random) -> None:
    """Sources that end behind the text, end before they begin, or lie in one another."""

    def change(held):
        sources = held["facts"]["sources"]
        last = sources[-1]
        r.choice([
            lambda: last.update(stop=10 * last["stop"] + 1),
            lambda: last.update(start=last["stop"] + 1),
            lambda: sources.append(dict(last, start=last["start"] + 1)),
        ])()  # fmt: skip

    edited(place, change, r, forged=1)


def absurd(place: Path, r: random.Random) -> None:
    def change(held):
        kind = r.choice(["segments", "streams"])
        places = list(leaves(held[kind], int))
        put(held[kind], r.choice(places), r.choice([2**40, 2**47, 2**62, 10**30]))

    edited(place, change, r)


def field_less(place: Path, r: random.Random) -> None:
    def change(held):
        part = r.choice([held, held["facts"], held["segments"][0], held["streams"][0], held["canary"]])
        del part[r.choice(sorted(part))]

    edited(place, change, r)


def field_more(place: Path, r: random.Random) -> None:
    def change(held):
        r.choice([held, held["facts"], held["segments"][0]]).update(more=1)

    edited(place, change, r)


def other_type(place: Path, r: random.Random) -> None:
    def change(held):
        put(held, r.choice(list(leaves(held, str))), r.choice([None, 1, 1.5, True, [], {}, ["x"]]))

    edited(place, change, r)


def path_of(place: Path, r: random.Random) -> None:
    def change(held):
        name = r.choice(sorted(held["files"]))
        held["files"][r.choice(["../x", "/etc/passwd", "a/../b", "..", "", "data-0000.bin"])] = held["files"].pop(name)

    edited(place, change, r)


def nonsense(place: Path, r: random.Random) -> None:
    (place / MANIFEST).write_bytes(r.choice([b"", b"[]", b"null", b"{", b"\xff\xfe", r.randbytes(100), b"NaN", b'"x"']))


def nested(place: Path, r: random.Random) -> None:
    (place / MANIFEST).write_text("[" * 200_000 if r.random() < 0.5 else '{"facts":' * 50_000)


def method(place: Path, r: random.Random) -> None:
    def change(held):
        facts = held["facts"]
        r.choice([
            lambda: facts.update(method="esa"),
            lambda: facts.update(method="nothing"),
            lambda: facts["parameters"].update(chunk_length=4),
            lambda: facts["parameters"].update(score="mean"),
            lambda: facts["angles"].update(name="PI"),
            lambda: facts.update(window=64),  # 256 lies in what is read: no answer changes
        ])()  # fmt: skip

    edited(place, change, r)


def dtype(place: Path, r: random.Random) -> None:
    def change(held):
        r.choice([
            lambda: held["facts"].update(dtype="bfloat16"),
            lambda: held["streams"][r.randrange(len(held["streams"]))].update(dtype="bfloat16"),
            lambda: held["streams"][r.randrange(len(held["streams"]))].update(dtype="Tensor"),
            lambda: held["facts"]["config"].update(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        ])()  # fmt: skip

    edited(place, change, r)
