"""``position_ids``: longspan numbers the tokens itself, and checks what a model is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from torch import Tensor

from longspan.errors import LongspanError

Numbering = Literal["slots", "tokens"]  # whether a row's padding is counted


def check_form(positions: Any, rows: int | None) -> None:
    """Raise unless ``position_ids`` are a tensor of one row, or of as many rows as the batch, if known."""
    if not isinstance(positions, Tensor):
        raise LongspanError(
            f"position_ids are a {type(positions).__name__}, not a tensor [batch, tokens]; leave position_ids out, and "
            "longspan numbers the tokens"
        )
    batch = positions.shape[-2] if positions.dim() > 1 else 1
    if positions.dim() == 0 or (rows is not None and batch not in (1, rows)):
        raise LongspanError(
            f"position_ids are {list(positions.shape)}, and the batch has {rows} rows; leave position_ids out, and "
            "longspan numbers the tokens"
        )


def by_token(mask: Tensor, tokens: int) -> Tensor:
    """``position_ids`` ``[B, tokens]`` that count no padding of a mask ``[B, N]``, as ``generate`` makes them."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens:]


def numbering(
    positions: Tensor, mask: Tensor | None, padding: Sequence[int], past: int, tokens: int, before: Numbering | None
) -> Numbering | None:
    """The numbering of ``position_ids``; longspan numbers the tokens itself, so they may say nothing else.

    Args:
        positions: ``[tokens]``, ``[B or 1, tokens]``, or several of those, one for each axis of an image.
        mask: ``attention_mask`` ``[B, ≥ tokens]``, or None.
        padding: padding tokens at the start of each row, those in the cache counted in.
        past: tokens in the cache.
        tokens: those that are new.
        before: the numbering of the tokens in the cache, or None if both fit.

    Returns:
        ``"slots"`` if padding counts, ``"tokens"`` if it does not, ``before`` if that is the same.

    Raises:
        LongspanError: they follow neither, or another than the tokens in the cache.
    """
    check_form(positions, len(padding))
    if positions.shape[-1] != tokens:
        raise LongspanError(f"position_ids are for {positions.shape[-1]} tokens, and {tokens} were passed")
    if tokens == 1 and not any(padding):
        if all(at == past for at in positions.flatten().tolist()):
            return before
        _refuse(positions, past)
    planes = positions.reshape(-1, positions.shape[-2] if positions.dim() > 1 else 1, tokens)
    slots = positions.new_tensor(range(past, past + tokens))
    pads = positions.new_tensor(tuple(padding))[:, None]
    padded = slots < pads
    if mask is not None:
        padded = padded | ~mask[:, -tokens:].bool().to(padded.device)
    by_slot, by_token = (bool(((planes == x) | padded).all()) for x in (slots, slots - pads))
    if not by_slot and not by_token:
        _refuse(positions, past)
    if by_slot and by_token:
        return before
    scheme: Numbering = "slots" if by_slot else "tokens"
    if before not in (None, scheme):
        raise LongspanError(
            f"position_ids count {'a' if by_slot else 'no'} row's padding, and those of the tokens in the cache did "
            f"{'not' if by_slot else 'so'}; leave position_ids out, and longspan numbers the tokens"
        )
    return scheme


def _refuse(positions: Tensor, past: int) -> NoReturn:
    first = positions.flatten()[:4].tolist()
    raise LongspanError(
        f"position_ids ({', '.join(map(str, first))}, ...) do not continue the {past} cached tokens; "
        "longspan numbers the tokens itself and does not support packed sequences or positions of your own: leave "
        "position_ids out. Those of generate continue them if the prompt begins with all tokens of the cache and has "
        "more; with an assistant or prompt lookup pass it an empty cache"
    )
