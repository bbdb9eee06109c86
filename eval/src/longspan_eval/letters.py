"""Scores of the option that a multiple-choice answer names: pure functions ``(prediction, references) → float``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from longspan_eval.metrics import several

# Words after which "A" is an option: no article stands before them.
_AFTER_OPTION = "and|or|is|are|was|because|since|as|for|from|by|in|on|with|which|but"


def book_choice(prediction: str, references: Sequence[str]) -> float:
    """InfiniteBench's rule for En.MC (Zhang et al., 2024): 1.0 or 0.0.

    The first of these decides: a first character among A to D; the whole answer; what follows "answer is:", "answer:",
    "answer is" or "option is"; the first word made of A to D in that order.

    Args:
        references: the right option's text, then its letter.
    """
    _pair(references)
    said = prediction.strip()
    if not said:
        return 0.0
    if said[0] in "ABCD":
        return float(said[0] in references)
    if said in references:
        return 1.0
    said = _plain(said, "\n\"'.,?!{}")
    for prefix in ("answer is:", "answer:", "answer is", "option is"):
        if prefix in said:
            return float(said.partition(prefix)[2][1:].startswith(tuple(references)))
    guess = next((word for word in said.split() if word in "ABCD"), None)
    return float(guess in references)


def code_debug(prediction: str, references: Sequence[str]) -> float:
    """InfiniteBench's rule for Code.Debug: 1.0 or 0.0.

    Right is an answer that begins with the letter and a full stop or colon, or that has the letter or the function's
    name right after the first of "answer is:", "is:", "answer:" and "correct option is:" that it holds. A letter with
    nothing after it is wrong.

    Args:
        references: the function's name, then its letter.
    """
    name, letter = _pair(references)
    said = prediction.strip()
    if said[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    for word in ("Option", "option"):
        said = said.replace(word, " ")
    said = _plain(said, "\n`'\"-*")
    for prefix in ("answer is:", "is:", "answer:", "correct option is:"):
        if prefix in said:
            return float(said.partition(prefix)[2][1:].startswith((letter, name)))
    return 0.0


def one_letter(prediction: str, references: Sequence[str]) -> float:
    """1.0 if the options that an answer names are the reference, such as ``"B"``; see ``options_named``."""
    return float(options_named(prediction) in [frozenset(right) for right in several(references)])


def letters(prediction: str, references: Sequence[str]) -> float:
    """L-Eval's rule for questions with several right options (Coursera; An et al., 2023). See ``options_named``.

    1.0 for all right options and no other, 0.25 for some of them and no wrong one, else 0.0.
    """
    said = options_named(prediction)
    rights = [frozenset(right) for right in several(references)]
    return 1.0 if said in rights else 0.25 if any(said and said < right for right in rights) else 0.0


def verdict(prediction: str, references: Sequence[str]) -> float:
    """1.0 if the first "true" or "false" of an answer, in any case, is the reference's first."""
    said = read_verdict(prediction)
    return float(said is not None and said in map(read_verdict, several(references)))


def options_named(answer: str) -> frozenset[str]:
    """The options A to H that an answer names; empty if none.

    They stand at its beginning, or after "answer", "option" or "choice" (and "is", "are", ":"), or else are the first
    capitals that stand alone; and all that follow on the first with a comma, "/", "&", "and" or "or" between them. "A"
    before a small letter is the article, unless that begins a word that no article stands before, such as "because".
    """
    one = rf"(?:[A-H]{{2,8}}|[B-H]|A(?!\s+(?!(?:{_AFTER_OPTION})(?![\w-]))[a-z]))\b(?!['’]\w)"
    group = rf"[(\[*\"']*{one}[)\]*\"']*"
    run = rf"{group}(?:(?: *[,/&] *(?:and |or )?| (?:and|or) ){group})*"
    patterns = (
        rf"^\s*({run})",
        rf"(?i:\b(?:answers?|options?|choices?)\b)(?:\s+(?:is|are))?\s*:?\s*({run})",
        rf"(?<![A-Za-z0-9])({run})",
    )
    for pattern in patterns:
        found = re.search(pattern, answer)
        if found is not None:
            return frozenset(re.findall(r"[A-H]", found.group(1)))
    return frozenset()


def read_verdict(text: str) -> str | None:
    """The first "true" or "false" of a text, in lower case."""
    found = re.search(r"\b(true|false)\b", text.lower())
    return None if found is None else found.group(1)


def _pair(references: Sequence[str]) -> tuple[str, str]:
    if isinstance(references, str) or len(references) != 2:
        raise ValueError(f"the references are the right option's text and its letter, not {references!r}")
    return references[0], references[1]


def _plain(text: str, signs: str) -> str:
    """With a blank for each of the signs, and one for any run of them."""
    return re.sub(" +", " ", text.translate({ord(sign): " " for sign in signs}))
