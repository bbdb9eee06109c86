"""Tokenizers that behave as others than the bundled one do."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tokenizers import decoders


def without_first_space(tokenizer: Any) -> Any:
    """The same tokens, decoded as those of SentencePiece: without the space that a text begins with."""
    own = deepcopy(tokenizer)
    backend = own.backend_tokenizer
    backend.decoder = decoders.Sequence([backend.decoder, decoders.Strip(" ", 1, 0)])
    return own
