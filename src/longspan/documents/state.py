"""The small state beside a document's streams, and the safetensors files that it and the tokens lie in.

torch is imported only for tensors: ``longspan verify`` needs none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, deserialize

from longspan.errors import DocumentError

if TYPE_CHECKING:
    from torch import Tensor

_KEY = "longspan_document"  # one entry of the header: several would come in random order


@dataclass(frozen=True)
class State:
    """Small state that does not only grow: the inputs of unfinished units, sliding windows, and counts.

    Attributes:
        tensors: by name. counts: whole numbers, by name.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)


def state_bytes(state: State) -> bytes:
    """A state as one safetensors file."""
    from safetensors.torch import save

    data: bytes = save(dict(state.tensors), metadata={_KEY: json.dumps(state.counts, sort_keys=True)})
    return data


def state_from(data: bytes) -> State:
    """Inverts ``state_bytes``; raises ``DocumentError``."""
    from safetensors.torch import load

    _, counts = check_state(data)
    return State(dict(load(data)), counts)


def check_state(data: bytes) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The entries and the counts of a state's file, of which no tensor is made; raises ``DocumentError``."""
    entries, head = entries_from(data)
    try:
        counts = json.loads(head)
        good = isinstance(counts, dict) and all(
            isinstance(values, list) and all(type(x) is int for x in values) for values in counts.values()
        )
    except (ValueError, RecursionError):
        good = False
    if not good:
        raise DocumentError("its state has no counts; it is damaged, read the text again")
    return entries, counts


def entries_from(data: bytes) -> tuple[dict[str, Any], str]:
    """The dtype, shape and bytes of each tensor of a safetensors file, and our entry of its header.

    Raises:
        DocumentError: it is none.
    """
    try:
        size = int.from_bytes(data[:8], "little")
        head = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        return dict(deserialize(data)), str(head.get(_KEY, "null"))
    except (SafetensorError, ValueError, AttributeError, RecursionError) as error:
        raise DocumentError(
            f"not a complete safetensors file ({' '.join(str(error).split())}); read the text again"
        ) from None
