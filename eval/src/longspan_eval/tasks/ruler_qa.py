"""RULER's two question tasks (Hsieh et al., 2024): qa-1 over SQuAD 2.0, qa-2 over HotpotQA, among other passages.

The prompt's wording is the official one (Apache-2.0). As many passages are put in as fit; the question's own are always
there, then those of the same article, then others, and all are shuffled. The files are those of the datasets' authors.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from longspan.text.encode import encode
from longspan_eval import metrics
from longspan_eval.datafile import DataFile, FileRef, check_field, given
from longspan_eval.prompt import compose
from longspan_eval.task import Example, Record, Task

PAPER = "Hsieh et al., 2024, arXiv 2404.06654"
NEW_TOKENS = 32
_ONLY = "Answer the question based on the given documents. Only give me the answer and do not output any other words."
BEFORE = f"{_ONLY}\n\nThe following are given documents.\n\n"
AFTER = f"\n\n{_ONLY}\n\nQuestion: {{question}}"
LEAD = " Answer:"

Passages = Callable[[Any], list[str]]  # of a parsed file: every passage once, sorted


def build(
    passages_of: Passages,
    tokenizer: Any,
    *,
    length: int,
    seed: int,
    depth: float | None = None,
    record: Record | None = None,
) -> Example:
    """A question over as many passages as fit; ``seed`` draws the strangers among them, and their order."""
    record = given(record, depth, "RULER's qa")
    rng = random.Random(seed)
    passages = _load(passages_of, record["passages"])
    room = length - NEW_TOKENS
    own = list(record["own"])
    after = AFTER.format(question=record["question"])

    def prompt(order: list[int]) -> list[int]:
        text = "\n\n".join(f"Document {place}:\n{passages[n]}" for place, n in enumerate(order, 1))
        return compose(tokenizer, BEFORE + text + after, chat=True, lead=LEAD)

    used = len(prompt(own))
    if used > room:
        raise ValueError(
            f"{length} tokens are too few: the question, its own passages and {NEW_TOKENS} tokens for the answer take "
            f"{used + NEW_TOKENS}"
        )
    added: list[int] = []
    for n in _strangers(rng, record, len(passages)):
        used += len(encode(tokenizer, f"\n\nDocument {len(own) + len(added) + 1}:\n{passages[n]}"))
        if used > room:
            break
        added.append(n)
    order = own + added
    rng.shuffle(order)
    # Passages by themselves may take a token less than in their place.
    while len(ids := prompt(order)) > room:
        order.remove(added.pop())
    return Example(ids, tuple(record["answers"]), seed, None, None)


def _strangers(rng: random.Random, record: Record, count: int) -> Iterator[int]:
    """All other passages, each once: those of the same article first, both in random order."""
    same = record["same_article"]
    near = {*record["own"], *same}
    return chain(rng.sample(same, len(same)), (n for n in rng.sample(range(count), count) if n not in near))


@lru_cache(maxsize=2)
def _load(passages_of: Passages, file: FileRef) -> list[str]:
    return passages_of(json.loads(file.read().decode("utf-8-sig")))


def squad_passages(document: Any) -> list[str]:
    """Every passage of a SQuAD file once, sorted."""
    return sorted({paragraph["context"] for article in document["data"] for paragraph in article["paragraphs"]})


def hotpotqa_passages(document: Any) -> list[str]:
    """Every passage of a HotpotQA file once, its title above it, sorted."""
    return sorted({_titled(passage) for question in document for passage in question["context"]})


def _titled(passage: Any) -> str:
    return f"{passage[0]}\n{''.join(passage[1])}"


def _squad(document: Any, path: Path) -> list[Record]:
    """The questions of a SQuAD 1.1 or 2.0 file that have an answer."""
    questions = []
    for paragraphs, paragraph, qa in list(_squad_questions(document)):  # the whole file is checked first
        if not qa.get("is_impossible", False):
            questions.append((qa, paragraph["context"], [other["context"] for other in paragraphs]))
    index = {passage: n for n, passage in enumerate(squad_passages(document))}
    file = FileRef.to(path)
    return [
        {
            "question": qa["question"],
            "answers": list(dict.fromkeys(answer["text"] for answer in qa["answers"])),
            "own": [index[own]],
            "same_article": sorted({index[other] for other in article} - {index[own]}),
            "passages": file,
        }
        for qa, own, article in questions
    ]


def _squad_questions(document: Any) -> Iterator[tuple[list[Any], Any, Any]]:
    """Every question with its paragraph and its article's; raises ValueError if the file is not of its form."""
    for article, where in _items(document, "", "data"):
        for paragraph, place in _items(article, where, "paragraphs"):
            _field(paragraph, place, "context", str)
            for qa, spot in _items(paragraph, place, "qas"):
                _field(qa, spot, "question", str)
                for answer, last in _items(qa, spot, "answers"):
                    _field(answer, last, "text", str)
                yield article["paragraphs"], paragraph, qa


def _hotpotqa(document: Any, path: Path) -> list[Record]:
    """The questions of a HotpotQA file, each with its ten passages."""
    if not isinstance(document, list):
        raise ValueError("a list of questions is needed")
    for n, question in enumerate(document):
        where = f"question {n + 1}"
        _field(question, where, "question", str)
        _field(question, where, "answer", str)
        _field(question, where, "context", list)
        for m, passage in enumerate(question["context"]):
            _field({f"context[{m}]": passage}, where, f"context[{m}]", list)
            if len(passage) != 2 or not isinstance(passage[0], str):
                raise ValueError(f"{where}: field 'context[{m}]' must be a title and a list of sentences")
            _field({f"context[{m}][1]": passage[1]}, where, f"context[{m}][1]", list[str])
    index = {passage: n for n, passage in enumerate(hotpotqa_passages(document))}
    file = FileRef.to(path)
    return [
        {
            "question": question["question"],
            "answers": [question["answer"]],
            "own": list(dict.fromkeys(index[_titled(passage)] for passage in question["context"])),
            "same_article": [],
            "passages": file,
        }
        for question in document
    ]


def _items(owner: Any, where: str, name: str) -> Iterator[tuple[Any, str]]:
    """The items of a list field, each with its place in the file."""
    _field(owner, where, name, list)
    for n, item in enumerate(owner[name]):
        yield item, f"{where}{'.' if where else ''}{name}[{n}]"


def _field(owner: Any, where: str, name: str, kind: Any) -> None:
    prefix = f"{where}: " if where else ""
    if not isinstance(owner, dict):
        raise ValueError(f"{prefix}an object is needed")
    try:
        check_field(owner, name, kind)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from error


def _check(record: Record) -> None:
    if not record["answers"] or not all(record["answers"]):
        raise ValueError(f"the question {record['question']!r} has no answer")


def _task(
    name: str, summary: str, file: str, source: str, parse: Callable[[Any, Path], list[Record]], passages: Passages
) -> Task:
    return Task(
        name=f"ruler-{name}",
        version=1,
        paper=PAPER,
        summary=summary,
        new_tokens=NEW_TOKENS,
        build=partial(build, passages),
        score=metrics.contains_any,
        data=DataFile(f"ruler/{file}.json", {"question": str, "answers": list[str]}, source, check=_check, parse=parse),
    )


RULER_QA = (
    _task(
        "qa-1",
        "a question of SQuAD over many passages",
        "squad",
        "dev-v2.0.json of SQuAD 2.0, named squad.json",
        _squad,
        squad_passages,
    ),
    _task(
        "qa-2",
        "a question of HotpotQA over many passages, two of which it takes",
        "hotpotqa",
        "hotpot_dev_distractor_v1.json of HotpotQA, named hotpotqa.json",
        _hotpotqa,
        hotpotqa_passages,
    ),
)
