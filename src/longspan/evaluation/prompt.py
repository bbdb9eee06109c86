"""Prompts made of an instruction, a long text and a question: the text is cut so that all fits, the rest never is."""

from __future__ import annotations

from typing import Any, Literal

from longspan.evaluation.filler import encode, start

Cut = Literal["middle", "left", "right"]

_MARK = "what the user says stands here"


def fit(
    tokenizer: Any,
    before: str,
    text: str,
    after: str,
    *,
    length: int,
    new_tokens: int,
    cut: Cut,
    chat: bool,
    lead: str = "",
) -> list[int]:
    """The prompt ``before + text + after``, in at most ``length - new_tokens`` tokens.

    Args:
        tokenizer: a transformers tokenizer.
        before, after: what comes before and after the long text.
        text: the long text.
        length: tokens of prompt and answer.
        new_tokens: tokens kept free for the answer.
        cut: what goes of a text that is too long: of the whole prompt its middle, so that it keeps as many tokens
            before as after (as LongBench and InfiniteBench do); or of the text its left or right end.
        chat: whether the prompt is put into the tokenizer's chat template, where it has one.
        lead: how the answer begins; with a chat template it comes after the template.

    Raises:
        ValueError: ``length`` is so short that more than the text would have to be cut.
    """
    room = length - new_tokens
    whole = compose(tokenizer, before + text + after, chat=chat, lead=lead)
    if len(whole) <= room:
        return whole
    if _has_template(tokenizer, chat):
        opening, closing = _around(tokenizer)
        head, tail = encode(tokenizer, opening), encode(tokenizer, closing + lead)
    else:
        head, tail, after = start(tokenizer), [], after + lead
    after_ids = encode(tokenizer, after)
    first, last = len(encode(tokenizer, before)), len(after_ids)
    inside = room - len(head) - len(tail)
    # Cutting in the middle leaves the same to either side, so the longer one decides.
    least = 2 * max(first, last) if cut == "middle" else first + last
    if inside < least:
        raise ValueError(
            f"{length} tokens are too few: instructions, question and {new_tokens} tokens for the answer take "
            f"{least + len(head) + len(tail) + new_tokens}"
        )
    if cut == "middle":
        body = cut_middle(encode(tokenizer, before + text + after), inside)
    elif cut == "left":
        ids = encode(tokenizer, text + after)
        body = encode(tokenizer, before) + ids[len(ids) - (inside - first) :]
    else:
        ids = encode(tokenizer, before + text)
        body = ids[: inside - last] + after_ids
    return head + body + tail


def compose(tokenizer: Any, said: str, *, chat: bool, lead: str = "") -> list[int]:
    """The prompt that says so, whole; ``chat`` and ``lead`` as of ``fit``."""
    if _has_template(tokenizer, chat):
        return encode(tokenizer, _render(tokenizer, said) + lead)
    return start(tokenizer) + encode(tokenizer, said + lead)


def cut_middle(ids: list[int], room: int) -> list[int]:
    """The first ``room // 2`` tokens and as many of the last as make ``room``; all where they are no more."""
    if len(ids) <= room:
        return ids
    half = room // 2
    return ids[:half] + ids[len(ids) - (room - half) :]


def _has_template(tokenizer: Any, chat: bool) -> bool:
    return chat and bool(getattr(tokenizer, "chat_template", None))


def _render(tokenizer: Any, said: str) -> str:
    messages = [{"role": "user", "content": said}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _around(tokenizer: Any) -> tuple[str, str]:
    """What a chat template puts before and after what the user says."""
    parts = _render(tokenizer, _MARK).split(_MARK)
    if len(parts) != 2:
        raise ValueError(
            f"the tokenizer's chat template shows what the user says {len(parts) - 1} times instead of once; "
            "set tokenizer.chat_template to None to do without"
        )
    return parts[0], parts[1]
