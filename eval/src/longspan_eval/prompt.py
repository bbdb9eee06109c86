"""Prompts made of an instruction, a long text and a question: the text is cut so that all fits, the rest never is."""

from __future__ import annotations

from typing import Any, Literal

from longspan.text.encode import beginning, encode

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
        length: tokens of prompt and answer.
        new_tokens: tokens kept free for the answer.
        cut: what goes of a text that is too long: of the whole prompt its middle, so that it keeps as many tokens
            before as after (as LongBench and InfiniteBench do); or of the text its left or right end.
        chat: whether the prompt is put into the tokenizer's chat template, if it has one. What was cut is then
            tokenized anew inside it, and may take a few tokens less than there are.
        lead: how the answer begins; with a chat template it comes after the template.

    Raises:
        ValueError: ``length`` is so short that more than the text would have to be cut.
    """
    room = length - new_tokens
    whole = compose(tokenizer, before + text + after, chat=chat, lead=lead)
    if len(whole) <= room:
        return whole
    template = _has_template(tokenizer, chat)
    if not template:
        after, lead = after + lead, ""
    fixed = len(compose(tokenizer, "", chat=chat, lead=lead))
    ids = encode(tokenizer, before + text + after) if template else whole[fixed:]
    opening, closing = encode(tokenizer, before), encode(tokenizer, after)
    # Cutting in the middle leaves the same to either side, so the longer one decides.
    least = 2 * max(len(opening), len(closing)) if cut == "middle" else len(opening) + len(closing)
    inside = room - fixed
    while inside >= least:
        body = _cut(ids, inside, opening, closing, cut)
        if not template:
            return beginning(tokenizer) + body
        said = tokenizer.decode(body, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        prompt = compose(tokenizer, said, chat=True, lead=lead)
        if len(prompt) <= room:
            return prompt
        inside -= len(prompt) - room  # what was cut apart may take a token or two more where it meets
    raise ValueError(
        f"{length} tokens are too few: instructions, question and {new_tokens} tokens for the answer take "
        f"{least + fixed + new_tokens + max(0, room - fixed - inside)}"
    )


def compose(tokenizer: Any, said: str, *, chat: bool, lead: str = "") -> list[int]:
    """The prompt that says so, whole; ``chat`` and ``lead`` as of ``fit``."""
    if _has_template(tokenizer, chat):
        return encode(tokenizer, _render(tokenizer, said) + lead)
    return beginning(tokenizer) + encode(tokenizer, said + lead)


def cut_middle(ids: list[int], room: int) -> list[int]:
    """The first ``room // 2`` tokens and as many of the last as make ``room``; all if there are no more."""
    if len(ids) <= room:
        return ids
    half = room // 2
    return ids[:half] + ids[len(ids) - (room - half) :]


def _cut(ids: list[int], room: int, opening: list[int], closing: list[int], cut: Cut) -> list[int]:
    """``ids`` without what is too much. ``opening`` and ``closing`` are what they begin and end in by themselves.

    If a border is cut, the part that stays is put there by itself: beside the text its tokens may be others.
    """
    if len(ids) <= room:
        return ids
    if cut == "middle":
        return cut_middle(ids, room)
    if cut == "left":
        return opening + ids[len(ids) - (room - len(opening)) :]
    return ids[: room - len(closing)] + closing


def _has_template(tokenizer: Any, chat: bool) -> bool:
    if not (chat and getattr(tokenizer, "chat_template", None)):
        return False
    times = _render(tokenizer, _MARK).count(_MARK)
    if times != 1:
        raise ValueError(
            f"the tokenizer's chat template shows what the user says {times} times instead of once; "
            "set tokenizer.chat_template to None to do without"
        )
    return True


def _render(tokenizer: Any, said: str) -> str:
    messages = [{"role": "user", "content": said}]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text
