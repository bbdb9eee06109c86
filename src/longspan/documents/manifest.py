"""The fields of a document's manifest: here and nowhere else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from longspan.errors import MOST as MOST_TOKENS
from longspan.errors import DocumentError

FORMAT = 5
ENTRIES = "entries"  # the stream of an index, which has other entries than tokens
SCALES = " scales"  # after the name of a stream in int8: what its numbers are multiplied by
KV = "exact", "int8"  # how keys and values are kept
MOST = 2**48  # of anything that is counted
_SUM = "sha256"  # the key of the checksum of all others
LONGEST = 20_000_000  # bytes of a manifest


@dataclass(frozen=True)
class Stream:
    """One layer's entries of every token, or of every unit of tokens: ``[heads, entries, width]``.

    Attributes:
        name: ``keys 0``, ``keys 1``, ... for each stored rotation, ``values``, ``entries`` of the method's index,
            ``stock keys`` and ``stock values`` of a layer that the method is not attached to. Beside a stream in int8
            there is one of its scales: of values for each token, of keys for each block of 64 tokens.
        stands_for: the dtype that numbers in int8 are dequantised to; empty of numbers that are kept as they are.
    """

    layer: int
    name: str
    heads: int
    width: int
    dtype: str
    stands_for: str = ""

    @property
    def by_token(self) -> bool:
        """Whether every token has an entry."""
        return self.name != ENTRIES and not (self.name.startswith("keys") and self.name.endswith(SCALES))


@dataclass(frozen=True)
class StreamSpan:
    """The entries of one stream in one segment.

    Attributes:
        start, stop: those that are new in it.
        room: one past the last entry that it has room for.
        sha256: over its bytes; as long as the reading is not finished, over the SHA-256 of each head.
        edges: over the first and the last bytes of it, which are checked at every opening.
    """

    start: int
    stop: int
    room: int
    sha256: str
    edges: str


@dataclass(frozen=True)
class Segment:
    """Tokens ``[start, stop)`` of all streams, in one file.

    Attributes:
        room: one past the last token that it has room for.
        spans: in the order of the manifest's streams, of which the last ones may have begun later.
    """

    start: int
    stop: int
    room: int
    spans: tuple[StreamSpan, ...]


@dataclass(frozen=True)
class Stored:
    """A file beside the segments."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """The origin of some characters of the text."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The strings around a text and a question.

    Attributes:
        name: ``plain``, ``own``, or one of the chat template's: ``chat``, ``instructed``, ``quoted``.
        head: before the text. joint: between text and question. end: after the question.
        turn: between an answer and the next question.
        system: the system prompt, which ``head`` has; empty if there is none.
    """

    name: str
    head: str
    joint: str
    end: str
    turn: str
    system: str = ""

    @property
    def templated(self) -> bool:
        """Whether it is the tokenizer's chat template."""
        return self.name not in ("plain", "own")


@dataclass(frozen=True)
class Canary:
    """The model's logits after the document when it reads its last tokens once more.

    Attributes:
        tokens: the ids that are read.
        sha256: over the logits, as fp32 bytes.
        places, values: some of the last token's logits, the highest first.
        budget: by how much each may differ if other kernels compute it.
    """

    tokens: tuple[int, ...]
    sha256: str
    places: tuple[int, ...]
    values: tuple[float, ...]
    budget: float


@dataclass(frozen=True)
class Facts:
    """Facts known of a document before it is read.

    Attributes:
        format, longspan: of the files, and of the library that wrote them.
        tokens, tokens_sha256: how many, and of their ids.
        tokenizer_sha256: of its vocabulary, rules and chat template.
        source: where the model was loaded from, a hub name or a folder.
        model: its class. config: its config, every RoPE parameter among it. weights_sha256: of its weights.
        dtype: the model runs in it. weights: the form that its matrices were loaded in; empty if they are numbers.
        method: its name. parameters: every one of them. angles: theirs. window: the trained one, in tokens.
        calibration_sha256: of the maps that scores are reduced by; empty if there are none.
        machine: what computes it: processor, library and kernels.
        prefill_chunk: tokens that are read at a time.
        kv: ``exact``, or ``int8`` if keys and values are kept in int8.
        layout: what stands around the text.
        keeps_text: whether the text is there.
        sources: where the text came from.
    """

    format: int
    longspan: str
    tokens: int
    tokens_sha256: str
    tokenizer_sha256: str
    source: str
    model: str
    config: dict[str, Any]
    weights_sha256: str
    dtype: str
    weights: str
    method: str
    parameters: dict[str, Any]
    angles: dict[str, Any]
    window: int
    calibration_sha256: str
    machine: str
    prefill_chunk: int
    kv: str
    layout: Layout
    keeps_text: bool
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Manifest:
    """All that is said of a document besides its bytes.

    Attributes:
        streams, segments: what was kept of the tokens.
        files: the other files, by name.
        canary: what is computed anew at opening; None as long as the reading is not finished.
    """

    facts: Facts
    streams: tuple[Stream, ...]
    segments: tuple[Segment, ...]
    files: dict[str, Stored]
    canary: Canary | None

    @property
    def tokens(self) -> int:
        """How many the segments hold."""
        return self.segments[-1].stop if self.segments else 0

    def to_json(self) -> str:
        """The manifest as the text of its file, with a checksum of all of it."""
        held = asdict(self)
        return json.dumps({_SUM: _sum(held), **held}, indent=1, sort_keys=True) + "\n"


def parse(text: bytes) -> Manifest:
    """The manifest of a text, every field of the type that it has to be.

    Raises:
        DocumentError: a field is missing, unknown, of another kind or of a value that cannot be.
    """
    try:
        held = json.loads(text.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise DocumentError("its manifest is nested too deeply") from None
    except ValueError as error:
        raise DocumentError(f"its manifest is not valid JSON ({error})") from None
    facts = held.get("facts") if isinstance(held, dict) else None
    if isinstance(facts, dict) and facts.get("format") != FORMAT:
        raise DocumentError(
            f"its format is {_shown(facts.get('format'))}, and this longspan reads format {FORMAT}; read the text "
            "again, or use the version of longspan that wrote it"
        )
    written = held.pop(_SUM, None) if isinstance(held, dict) else None
    manifest = _of(Manifest, held, "its manifest")
    if written != _sum(held):
        raise DocumentError("its manifest is not what was written (its checksum differs); read the text again")
    assert isinstance(manifest, Manifest)
    _check_values(manifest.facts)
    return manifest


def _check_values(facts: Facts) -> None:
    """Raise ``DocumentError`` for a value of the right type that would fail only when it is used."""
    for name, value in (("prefill_chunk", facts.prefill_chunk), ("window", facts.window)):
        if not 1 <= value <= MOST_TOKENS:
            raise DocumentError(f"its manifest.facts.{name} is {_shown(value)}, which is invalid")
    if facts.kv not in KV:
        raise DocumentError(f"its manifest.facts.kv is {_shown(facts.kv)}, which is none of {', '.join(KV)}")
    end = 0
    for n, one in enumerate(facts.sources):
        if not end <= one.start <= one.stop:
            raise DocumentError(
                f"its manifest.facts.sources[{n}] has the characters {one.start} to {one.stop} after {end}, which "
                "is invalid"
            )
        end = one.stop


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The fields of a dataclass and their types."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _sum(held: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def _of(kind: Any, value: Any, where: str) -> Any:
    """A value as a type says it; the message of what does not fit names the field."""
    if get_origin(kind) is UnionType:
        return None if value is None else _of(get_args(kind)[0], value, where)
    if (is_dataclass(kind) or get_origin(kind) is dict) and not isinstance(value, dict):
        raise DocumentError(f"{where} must be an object, not {_shown(value)}")
    if is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        names = hints.keys()
        for name in sorted(names ^ value.keys()):
            raise DocumentError(f"{where} has {'no' if name in names else 'an unknown'} field {_shown(name)}")
        return kind(**{name: _of(hints[name], value[name], f"{where}.{name}") for name in names})
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise DocumentError(f"{where} must be a list, not {_shown(value)}")
        return tuple(_of(get_args(kind)[0], x, f"{where}[{n}]") for n, x in enumerate(value))
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        return dict(value) if inner is Any else {k: _of(inner, x, f"{where}.{k}") for k, x in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is not kind:
        raise DocumentError(f"{where} must be {_WORDS[kind]}, not {_shown(value)}")
    if kind is int and not 0 <= value <= MOST:
        raise DocumentError(f"{where} is {_shown(value)}, which is invalid")
    return value


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown(value: Any) -> str:
    """A value of a field in a message; of a hash its beginning."""
    text = "nothing" if value in (None, "") else str(value)
    return f"{text[:12]}..." if len(text) == 64 else text if len(text) < 80 else f"{text[:77]}..."


def plain(value: Any) -> dict[str, Any]:
    """A dataclass of this file as JSON would give it back."""
    held: dict[str, Any] = json.loads(json.dumps(asdict(value)))
    return held


def differences(kept: Mapping[str, Any], live: Mapping[str, Any], where: str = "") -> list[tuple[str, Any, Any]]:
    """The fields in which two sets of values differ, nested ones by their path, with both values."""
    found: list[tuple[str, Any, Any]] = []
    for name in sorted(kept.keys() | live.keys()):
        a, b = kept.get(name), live.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{where}{name}.")
        elif a != b:
            found.append((f"{where}{name}", a, b))
    return found
