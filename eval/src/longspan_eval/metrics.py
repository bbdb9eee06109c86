"""How right an answer is: pure functions ``(prediction, references) → float`` in 0..1, the best over the references.

Those of LongBench (Bai et al., 2023) and SCROLLS (Shaham et al., 2022) give the official figures. ROUGE needs two small
packages, ``pip install 'longspan[eval]'``. Letters of multiple-choice questions are in ``letters``.
"""

from __future__ import annotations

import math
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

Score = Callable[[str, Sequence[str]], float]

ROUGE_KINDS = ("rouge1", "rouge2", "rougeL")


def qa_f1(prediction: str, references: Sequence[str]) -> float:
    """The harmonic mean of precision and recall over ``normalised`` words, as in SQuAD.

    A word counts as often as it occurs. 0.0 if no word is shared, also if both texts are empty.
    """
    return max(_word_f1(normalised(prediction).split(), normalised(right).split()) for right in several(references))


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1.0 if the prediction, ``normalised``, is a reference."""
    said = normalised(prediction)
    return float(any(said == normalised(right) for right in several(references)))


def contains_any(prediction: str, references: Sequence[str]) -> float:
    """1.0 if a reference occurs in the prediction, in any case; RULER's score of its questions."""
    said = prediction.lower()
    return float(any(right.lower() in said for right in several(references)))


def count(prediction: str, references: Sequence[str]) -> float:
    """The share of the prediction's whole numbers that are the reference; LongBench's score of passage counts."""
    numbers = re.findall(r"\d+", prediction)
    return max(numbers.count(right) / len(numbers) if numbers else 0.0 for right in several(references))


def retrieval(prediction: str, references: Sequence[str]) -> float:
    """The share of the prediction's whole numbers that are the one in a reference, such as ``"Paragraph 7"``."""
    rights = []
    for right in several(references):
        found = re.search(r"Paragraph (\d+)", right)
        if found is None:
            raise ValueError(f"a reference must name a paragraph, such as 'Paragraph 7', not {right!r}")
        rights.append(found.group(1))
    return count(prediction, rights)


def class_match(prediction: str, references: Sequence[str]) -> float:
    """1 / (classes named), if the right one is among them; 0.0 if not. LongBench's score of trec.

    Args:
        prediction: what was said. A class counts as named if its name occurs in it, but not if the right one's name
            holds it too.
        references: the right class, and then all classes.
    """
    right, *classes = several(references)
    if right not in classes:
        raise ValueError(f"the references are the right class, then all classes; {right!r} is not among the latter")
    named = [name for name in classes if name in prediction and (name == right or name not in right)]
    return 1 / len(named) if right in named else 0.0


def edit_similarity(prediction: str, references: Sequence[str]) -> float:
    """How alike the first line of code is to the reference, 0 to 1 in steps of 0.01; LongBench's score of code.

    That is the first line without a backtick, ``#`` or ``//``, and difflib's ratio, which fuzzywuzzy rounds so as well.
    """
    line = code_line(prediction)
    return max(round(100 * SequenceMatcher(None, line, right).ratio()) / 100 for right in several(references))


def code_line(text: str) -> str:
    """The first line that ``is_code``; empty if there is none."""
    return next(filter(is_code, text.lstrip("\n").split("\n")), "")


def is_code(line: str) -> bool:
    """Whether a line is neither a fence nor, in Python or the languages of C, a comment."""
    return not any(sign in line for sign in ("`", "#", "//"))


def rouge_l_by_sentence(prediction: str, references: Sequence[str]) -> float:
    """LongBench's ROUGE-L, by the rouge package: common subsequences sentence by sentence, their union as a set.

    Sentences end at any full stop, words at blanks, case and punctuation count, and a word counts once however often it
    is there. The two ROUGE-L of one answer may lie 0.2 apart, so LongBench's figures compare with this one alone. If
    the official script scores 0 because the package's recursion runs too deep, here the score is given.
    """
    return max(_rouge_by_sentence(prediction, right) for right in several(references))


def rouge_geometric_mean(prediction: str, references: Sequence[str]) -> float:
    """The cube root of ROUGE-1 · ROUGE-2 · ROUGE-L, each the best over the references.

    SCROLLS multiplies the three *after* averaging each over all answers, which is never less than the mean of this over
    the answers: what is given here is the score of one answer, as of every other task.
    """
    each = [_scorer().score(right, prediction) for right in several(references)]
    return math.cbrt(math.prod(max(scores[kind].fmeasure for scores in each) for kind in ROUGE_KINDS))


def on_first_line(score: Score, prediction: str, references: Sequence[str]) -> float:
    """Another score, of the prediction's first line that is not empty: base models go on with an example of theirs."""
    return score(prediction.lstrip("\n").split("\n")[0], references)


def before_next(mark: str, score: Score, prediction: str, references: Sequence[str]) -> float:
    """Another score, of what comes before ``mark``, or after a leading one: base models go on with a next question."""
    return score(next((part for part in prediction.split(mark) if part.strip()), ""), references)


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, then without the words a, an and the, words one blank apart."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def several(references: Sequence[str]) -> Sequence[str]:
    """The references, if they are a sequence of at least one answer.

    Raises:
        ValueError: they are one string, or none.
    """
    if isinstance(references, str):
        raise ValueError(f"references must be a sequence of answers, such as ({references!r},), not one string")
    if not references:
        raise ValueError("at least one reference is needed to score an answer")
    return references


def _word_f1(said: list[str], right: list[str]) -> float:
    shared = (Counter(said) & Counter(right)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def _rouge_by_sentence(prediction: str, right: str) -> float:
    # The package raises for a text without a sentence; LongBench then gives 0.
    if not prediction.replace(".", "") or not right.replace(".", ""):
        return 0.0
    with _recursion_for(len(prediction.split()) + len(right.split())):
        return float(_by_sentence().get_scores(prediction, right)[0]["rouge-l"]["f"])


@contextmanager
def _recursion_for(words: int) -> Iterator[None]:
    """The package walks a pair of sentences word by word in recursion, and a model may write without a full stop."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 2 * words)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # here: it brings much that no other metric takes

    return RougeScorer(list(ROUGE_KINDS), use_stemmer=False)


@lru_cache(maxsize=1)
def _by_sentence() -> Any:
    from rouge import Rouge

    return Rouge(metrics=["rouge-l"])
