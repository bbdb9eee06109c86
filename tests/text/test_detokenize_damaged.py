"""Bytes that are no character: what comes of them is the whole's text, soon, and for a bounded number of decodings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from longspan.text.detokenize import IncrementalDetokenizer
from support.token_texts import SPECIAL, byte_fallback, byte_level, of_tokens

DAMAGED = "\ufffd"
# Bytes of 日 (e6 97 a5), é (c3 a9) and 😀 (f0 9f 98 80), and what is in no character.
BYTES = [bytes([byte]) for byte in (0xE6, 0x97, 0xA5, 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xFF, 0x20, 0x61)]
# Tokens that end in a character and begin in one.
ACROSS = [b"\xa5\xe6\x97", b" \xe6", b"b\xf0\x9f", b"\x98\x80", b"\xa9\xf0\x9f\x98\x80\xe6", b" word", DAMAGED.encode()]
LEVEL = [*BYTES, *ACROSS]
# Without the byte of a space, which Llama 2's decoder leaves out at the beginning of whatever it decodes.
FALLBACK: list[bytes | str] = [*(byte for byte in BYTES if byte != b" "), "▁", "▁word", "b", DAMAGED]
WORDS = ["[UNK]", "word", "##word", DAMAGED, f"##{DAMAGED}", ".", "'", "##s", "日", "##日"]
SPACES = ["<unk>", "▁", "▁word", "b", DAMAGED, f"▁{DAMAGED}", "日"]
TOKENIZERS = {
    "byte level": byte_level(LEVEL),
    "byte fallback": byte_fallback(FALLBACK),
    "WordPiece": of_tokens(WORDS, decoders.WordPiece()),
    "metaspace": of_tokens(SPACES, decoders.Metaspace()),
}
SIZES = {"byte level": len(LEVEL), "byte fallback": len(FALLBACK), "WordPiece": len(WORDS), "metaspace": len(SPACES)}
LONGEST = 3  # tokens whose text may be held back: one more, and a character of four bytes is whole


def texts(tokenizer, ids):
    """What comes with each token, and at the end."""
    told = IncrementalDetokenizer(tokenizer)
    return [*map(told.add, ids), told.end()]


def bytewise(data: bytes) -> str:
    """A text of bytes, in which each byte that is in no character is a damaged one."""
    text, at = "", 0
    while at < len(data):
        for stop in range(at + 1, at + 5):
            try:
                text, at = text + data[at:stop].decode(), stop
                break
            except UnicodeDecodeError:
                continue
        else:
            text, at = text + DAMAGED, at + 1
    return text


def whole(name, ids):
    """The text of all tokens. A byte that is in no character spoils its neighbours where bytes are decoded together."""
    if name != "byte fallback":
        return TOKENIZERS[name].decode(ids, skip_special_tokens=True)
    parts = [FALLBACK[id] for id in ids if id < len(FALLBACK)]
    runs = itertools.groupby(parts, key=type)
    text = "".join(bytewise(b"".join(run)) if kind is bytes else "".join(run) for kind, run in runs)
    return text.replace("▁", " ").removeprefix(" ")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_tokens(name):
    special = len(SPECIAL)

    @settings(max_examples=600, deadline=None)
    @given(st.lists(st.integers(0, SIZES[name] - 1 + special), max_size=40))
    @example([3] * 40)
    @example([5, 1, 1, 13, 0, 1, 1])  # of byte level, a token that ends a character and begins another
    @example([0, 1, *[SIZES[name]] * 20, 2])
    def each(ids):
        assert "".join(texts(TOKENIZERS[name], ids)) == whole(name, ids)

    each()


def test_whole_bytes_are_decoded_as_by_the_tokenizer():
    """The reference above, where nothing is damaged."""
    for text in ("日é😀 word", "日 日", "aéb"):
        ids = [FALLBACK.index(bytes([byte])) for byte in text.encode() if bytes([byte]) in FALLBACK]
        assert whole("byte fallback", ids) == TOKENIZERS["byte fallback"].decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_is_held_back_is_short(name):
    """For any tokens over and over: all but the last few have come."""
    for period in (1, 2, 3):
        for some in itertools.product(range(SIZES[name]), repeat=period):
            ids = list(some) * (12 // period)
            found = texts(TOKENIZERS[name], ids)
            before = len("".join(found[:-1]))
            assert before >= len(whole(name, ids[:-LONGEST])) - 1, (ids, found)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("held", ["one", "several", "special"])
def test_a_run_takes_as_long_for_each_token(monkeypatch, name, held):
    """The tokens that are decoded in all, for four times as many: at most five times as many."""
    tokenizer, size = TOKENIZERS[name], SIZES[name]
    damaged = next(n for n in range(size) if tokenizer.decode([n]) == DAMAGED)
    some = {"one": [damaged], "several": range(size), "special": [damaged, *[size] * 50]}[held]
    decode, decoded = tokenizer.decode, []
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **more: decoded.append(len(ids)) or decode(ids, **more))

    def work(count):
        decoded.clear()
        texts(tokenizer, list(itertools.islice(itertools.cycle(some), count)))
        return sum(decoded)

    small, large = work(2_000), work(8_000)
    assert large <= 5 * small and max(decoded) <= 16
