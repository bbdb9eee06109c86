"""Scores of the synthetic tasks: each takes a prediction and the references, and gives 0 to 1."""

from __future__ import annotations

import re
from collections.abc import Sequence

from longspan_eval.metrics import several

_RETRIEVAL_MARKS = re.compile("[\n:\"'.,?!{}]")


def contained(prediction: str, references: Sequence[str]) -> float:
    """The share of the references that occur in the prediction, whatever their case (RULER)."""
    text = prediction.lower()
    return _share([reference.lower() in text for reference in several(references)])


def keywords(prediction: str, references: Sequence[str]) -> float:
    """The share of the references that occur in the prediction, letter by letter (NeedleBench)."""
    return _share([reference in prediction for reference in several(references)])


def first_integer(prediction: str, references: Sequence[str]) -> float:
    """1 if the first digits in the prediction are a reference, digit by digit, else 0 (InfiniteBench)."""
    found = re.search(r"[0-9]+", prediction)
    return float(found is not None and found.group() in several(references))


def first_number(prediction: str, references: Sequence[str]) -> float:
    """1 if the first number in the prediction equals a reference as a number, else 0 (InfiniteBench, Math.Find)."""
    found = re.search(r"[0-9]+\.[0-9]+|[0-9]+", prediction)
    values = [float(reference) for reference in several(references)]
    return float(found is not None and float(found.group()) in values)


def word_in_answer(prediction: str, references: Sequence[str]) -> float:
    """1 if a reference is a word of the prediction, marks and braces aside, else 0 (InfiniteBench, KV)."""
    words = _RETRIEVAL_MARKS.sub(" ", prediction).split()
    return float(any(reference in words for reference in several(references)))


def first_line_ends(prediction: str, references: Sequence[str]) -> float:
    """1 if the first line that is not empty ends in a reference, as a word and with or without a full stop; else 0."""
    said = prediction.strip().partition("\n")[0].rstrip(".")
    return float(any(f" {said} ".endswith(f" {reference} ") for reference in several(references)))


def line_complete(text: str) -> bool:
    """Whether the first line of a text that is not empty has ended."""
    return "\n" in text.lstrip()


def list_membership(prediction: str, references: Sequence[str]) -> float:
    """The share of M references among the first M numbers of the predicted list (Counting-Stars).

    The list is what stands in the first brackets; the opening one may be missing, for a prompt may end in it. Order
    does not count, and a number said again takes a place among the M, as in the code of its authors.
    """
    wanted = several(references)
    inner = prediction.partition("]")[0].rpartition("[")[2]
    listed = {int(number) for number in re.findall(r"[0-9]+", inner)[: len(wanted)]}
    return _share([int(reference) in listed for reference in wanted])


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits)
