"""Run texts through a model and hand out the unrotated queries and keys of every attached layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.errors import CalibrationError
from longspan.hf.attach import attached_to, extended
from longspan.methods import Method
from longspan.model.layer import Layer
from longspan.text.encode import beginning, encode

Sink = Callable[[Layer, Tensor, Tensor], None]
_SLICE = 1 << 18  # characters encoded at once, so that of a long text no more is encoded than is used
_AT_ONCE = 4096  # tokens a forward, if the window is shorter


def token_chunks(texts: Iterable[str | Tensor], tokenizer: Any, window: int, tokens: int) -> list[Tensor]:
    """Cut texts, in their order, into chunks of at most ``window`` tokens until there are ``tokens``.

    Args:
        texts: strings, or token ids ``[T]`` int64; read no further than needed.
        tokenizer: for strings. If it begins texts with tokens of its own, every chunk gets those.

    Returns:
        Token ids ``[T]`` int64 of each chunk. Fewer than ``tokens`` in all if the texts end before.
    """
    if isinstance(texts, (str, Tensor)):
        raise CalibrationError(f"texts must be a list of texts, not one {type(texts).__name__}: pass [text]")
    chunks: list[Tensor] = []
    left = tokens
    for head, ids in _encoded(texts, tokenizer):
        step = window - head.numel()
        if step < 1:
            raise CalibrationError(f"a window of {window} tokens is too small for text")
        for first in range(0, ids.numel(), step):
            chunk = torch.cat((head, ids[first : first + step]))[:left]
            # The rest at a text's end is worth a forward only if it is more than the tokenizer's own tokens.
            if chunk.numel() > head.numel():
                chunks.append(chunk)
                left -= chunk.numel()
            if left <= head.numel():
                return chunks
    return chunks


def token_ids(tokenizer: Any, text: str) -> Tensor:
    """Token ids ``[N]`` of a text alone, int64."""
    return torch.tensor(encode(tokenizer, text), dtype=torch.int64)


def _encoded(texts: Iterable[str | Tensor], tokenizer: Any) -> Iterator[tuple[Tensor, Tensor]]:
    head = None if tokenizer is None else torch.tensor(beginning(tokenizer), dtype=torch.int64)
    for number, text in enumerate(texts):
        if isinstance(text, Tensor):
            if text.dim() != 1 or text.dtype != torch.int64:
                raise CalibrationError(
                    f"text {number} is a tensor {text.dtype} {list(text.shape)}; token ids are 1-D int64"
                )
            yield text.new_empty(0).cpu(), text.cpu()
        elif isinstance(text, str):
            if tokenizer is None or head is None:
                raise CalibrationError(f"text {number} is a string: pass tokenizer=, or texts as tensors of token ids")
            for first in range(0, len(text), _SLICE):
                yield head, token_ids(tokenizer, text[first : first + _SLICE])
        else:
            raise CalibrationError(f"text {number} is a {type(text).__name__}, neither a string nor a tensor of ids")


def collect(
    model: PreTrainedModel,
    chunks: Sequence[Tensor],
    sink: Sink,
    *,
    method: str | Method = "full",
    window: int | None = None,
    done: Callable[[int], None] | None = None,
) -> None:
    """Run each chunk through the model and give ``sink`` the queries and keys of every attached layer.

    Calls of other threads through the model meanwhile are not handed out.

    The model is extended with ``method`` for the while and left as it was. Queries ``[B, H, T, D]`` and keys
    ``[B, Hkv, T, D]`` are unrotated; if a model normalises after its rotation they are normalised.

    Args:
        chunks: token ids ``[T]`` each.
        done: called with the number of tokens after each forward.
    """
    base, embedding = model.base_model, model.get_input_embeddings().weight
    for chunk in chunks:
        if chunk.numel() and not 0 <= int(chunk.min()) <= int(chunk.max()) < embedding.shape[0]:
            raise CalibrationError(f"a text has token ids outside the model's vocabulary of {embedding.shape[0]}")

    thread = get_ident()

    def observe(layer: Layer, q: Tensor, k: Tensor, v: Tensor, padding: tuple[int, ...]) -> None:
        if get_ident() != thread:
            return
        assert layer.rope is not None
        sink(layer, layer.rope.normed_q(q), layer.rope.normed_k(k))

    with torch.no_grad(), extended(model, method, window=window):
        attached_to(model).observer = observe
        for batch in _batches(chunks):
            # The decoder without the head: logits of every token would take more memory than all else.
            base(input_ids=batch.to(embedding.device), use_cache=False)
            if done is not None:
                done(batch.numel())


def _batches(chunks: Sequence[Tensor]) -> Iterator[Tensor]:
    """Consecutive chunks of equal length as ``[B, T]``, so that nothing is padded."""
    batch: list[Tensor] = []
    for chunk in chunks:
        if batch and (chunk.numel() != batch[0].numel() or (len(batch) + 1) * chunk.numel() > _AT_ONCE):
            yield torch.stack(batch)
            batch = []
        batch.append(chunk)
    if batch:
        yield torch.stack(batch)
