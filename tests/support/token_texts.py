"""Tokenizers that behave as others than the bundled one do."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<s>", "<reserved>")  # of all tokenizers below; the second is special to the backend alone


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


def of_tokens(tokens: list[str], decoder: Any) -> Any:
    """A tokenizer that only decodes: of these tokens, whose ids are their places, and after them of ``SPECIAL``."""
    backend = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}, unk_token=tokens[0]))
    backend.decoder = decoder
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=SPECIAL[0])


def byte_level(parts: list[bytes]) -> Any:
    """As GPT-2's: a token is any bytes, also the end of one character and the beginning of the next."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=ord)
    plain = [letter for letter in letters if ord(letter) < 256]  # these stand for themselves, the others for the rest
    names = {ord(letter): letter for letter in plain}
    names |= dict(zip((n for n in range(256) if n not in names), letters[len(plain) :], strict=True))
    return of_tokens(["".join(names[byte] for byte in part) for part in parts], decoders.ByteLevel())


def byte_fallback(parts: list[bytes | str]) -> Any:
    """As Llama 2's: a token is a text, in which ``▁`` is a space, or one byte; a text begins without its space."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    names = [part if isinstance(part, str) else f"<0x{part[0]:02X}>" for part in parts]
    return of_tokens(names, decoders.Sequence(steps))
