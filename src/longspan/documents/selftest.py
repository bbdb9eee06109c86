"""Whether a method finds what a text says beyond the window: facts in a copy of its end are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longspan.documents.document import Document
from longspan.documents.reader import read
from longspan.errors import LongspanError
from longspan.hf import extended
from longspan.methods import Method
from longspan.methods.parse import parse_method, written
from longspan.text.sentences import sentences

WINDOWS = 2  # of the copy, and from which length on a text is checked
OTHERS = ("dca", "esa:share=group")  # tried where the document's own method finds nothing
# Of the copy. All lie more than a window before the question, where a method has to do its work.
_DEPTHS = (1 / 8, 1 / 4, 3 / 8)
# What is stated, the question, and how its answer begins: a method is to be tested, and not whether a model obeys.
_FACTS = (
    ("These days {} lives in {} with the family.", "Which town does {} live in?", "{} lives in", "Lisbon Nairobi"),
    ("In a small garden {} keeps a {} as a friend.", "Which animal does {} keep?", "{} keeps a", "falcon hamster"),
    ("Every evening {} plays the {} for an hour.", "What is it that {} plays?", "{} plays the", "clarinet oboe"),
)
_PEOPLE = ["Ingrid", "Xenia", "Wilfred", "Tabitha", "Konrad", "Isidore", "Octavia", "Dorian"]
_LAYOUT = "{document}\n\nNow a question: {question}"
_ANSWER = 6  # tokens


@dataclass(frozen=True)
class Checked:
    """How many of the planted facts a method found.

    Attributes:
        method: as a command takes it. planted, found: facts.
    """

    method: str
    planted: int
    found: int


def self_test(document: Document) -> Iterator[Checked]:
    """What the document's own method finds and, if that is nothing, what others find, up to the first that does.

    The document and its model stay as they are.

    Raises:
        LongspanError: the end of the text has the names of all people that facts can be about.
    """
    attachment, model = document.attachment(), document.model
    attender, report = attachment.attender, attachment.report
    text, asked = _planted(document, WINDOWS * attender.window)

    def found(method: Method) -> Checked:
        copy = read(
            model, document.tokenizer, text,
            layout=_LAYOUT, prefill_chunk=document.prefill_chunk, kv=document.contents.kv,
        )  # fmt: skip
        answers = [(copy.ask(question, _ANSWER).text, value) for question, value in asked]
        return Checked(written(method), len(asked), sum(value in answer for answer, value in answers))

    own = found(attender.method)
    yield own
    if own.found:
        return
    for spec in OTHERS:
        method = parse_method(spec)
        if method.resolve(attender.window) == attender.method:
            continue
        with extended(model, method, window=attender.window, kv_tier=report.kv_tier, kv_dir=report.kv_dir):
            other = found(method)
        yield other
        if other.found:
            return


def _planted(document: Document, tokens: int) -> tuple[str, list[tuple[str, str]]]:
    """The last tokens of a document as text with facts in it, and the questions with the beginning of their answers."""
    text = str(document.tokenizer.decode(document.contents.ids[-tokens:].tolist(), skip_special_tokens=True))
    people = [name for name in _PEOPLE if name not in text]
    starts = [first for first, _ in sentences(text)]  # of any text, and never far apart
    asked, parts, end = [], [], 0
    for (statement, question, answer, values), depth, name in zip(_FACTS, _DEPTHS, people, strict=False):
        value = next((value for value in values.split() if value not in text), None)
        if value is None:
            continue
        place = max(end, int(depth * len(text)))
        stop = next((start for start in starts if start >= place), place)
        parts += [text[end:stop], statement.format(name, value), " "]
        asked.append((f"{question.format(name)}\n\nAnswer: {answer.format(name)}", value))
        end = stop
    if not asked:
        raise LongspanError(
            "the text names all people and things that facts are planted about; --no-check leaves it out"
        )
    return "".join([*parts, text[end:]]), asked
