"""What ends an answer."""

from __future__ import annotations

from collections.abc import Iterable


def end_tokens(ends: int | Iterable[int] | None) -> frozenset[int]:
    """The tokens that end an answer, of an ``eos_token_id`` as a generation config has it: one, several or none."""
    return frozenset() if ends is None else frozenset([ends] if isinstance(ends, int) else ends)
