"""Tokenizers that behave as others than the bundled one do."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast


def without_first_space(tokenizer: Any) -> Any:
    """The same tokens, decoded as those of SentencePiece: without the space that a text begins with."""
    own = deepcopy(tokenizer)
    backend = own.backend_tokenizer
    backend.decoder = decoders.Sequence([backend.decoder, decoders.Strip(" ", 1, 0)])
    return own


def of_bytes() -> Any:
    """A tokenizer with a token for each byte, decoded as those of Llama 2: bytes that stand together as one text."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *map(chr, range(32, 127))]
    model = models.BPE({token: n for n, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    backend = Tokenizer(model)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
