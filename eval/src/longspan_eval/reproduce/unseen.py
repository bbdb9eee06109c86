"""Questions on a document that the model cannot have seen (An et al., 2024, appendix A.5, Tables 6 and 7).

``unseen/paper.txt`` is the text. The questions are the paper's 6 easy and 4 hard ones, in words of our own, for which
the text is the paper itself without title, abstract and conclusion. ``unseen/questions.jsonl``, with a question and its
answer a line, has others instead, for a text that is newer than the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longspan_eval.datafile import DataFile, FileRef, given, read_records
from longspan_eval.errors import DataError
from longspan_eval.metrics import before_next, qa_f1
from longspan_eval.prompt import fit
from longspan_eval.task import Example, Record, Task

NAME, NEW_TOKENS = "unseen", 64
FILE, PAPER = "unseen/questions.jsonl", "unseen/paper.txt"
NEXT = "Question:"
SOURCE = "arXiv 2402.17463, its text without title, abstract and conclusion; or a text and questions.jsonl of yours"
EASY: dict[str, tuple[str, ...]] = {  # what is asked, and each answer that is right
    "Suggest a title for this paper.": ("Training-free long-context scaling of large language models",),
    # The text names the first two; of the answer with the third the paper's Table 6 does not say that it is wrong, and
    # its Table 2 has that model's perplexity to 192k.
    "Which model does dual chunk attention extend to a context of 192k tokens?": (
        "CodeLlama and Together's Llama2",
        "Llama2 70B",
    ),
    "On which models besides Llama2 did the authors try their method?": ("Together-32k and CodeLlama",),
    "Which data were the models with dual chunk attention fine-tuned on?": ("ShareGPT and AlpacaGPT4",),
    "For how many steps was Llama2 Long trained?": ("100,000 steps",),
    "Is L-Eval among the evaluations, and with which tasks?": ("Yes: TOFEL, QuALITY, Coursera and SFiction",),
}
HARD: dict[str, tuple[str, ...]] = {
    "What is the purpose of successive-chunk attention?": (
        "It keeps the locality: tokens next to each other in two chunks keep their true distance",
    ),
    "What is the purpose of inter-chunk attention?": ("It lets a query attend to the chunks before its own",),
    "Why does no relative position in dual chunk attention exceed the trained length?": (
        "Keys have positions below the chunk size, and queries positions below the trained length",
    ),
    "How does this paper differ most from earlier ones?": (
        "It extends the context without training, by reusing the trained relative positions in chunks",
    ),
}


def build(
    tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """The document, cut in the middle if it is too long, and a question."""
    record = given(record, depth, "questions on an unseen paper")
    ids = fit(
        tokenizer,
        "Read the paper and answer the question.\n\n",
        record["paper"].read().decode("utf-8-sig").strip(),
        f"\n\n{NEXT} {record['question']}\nAnswer:",
        length=length,
        new_tokens=NEW_TOKENS,
        cut="middle",
        chat=True,
    )
    return Example(ids, tuple(record["answers"]), seed, None, None)


def score(prediction: str, references: Any) -> float:
    """F1 of the words before the model asks a question of its own."""
    return before_next(NEXT, qa_f1, prediction, references)


def asks_on(text: str) -> bool:
    """Whether an answer has ended because the model asks a question of its own."""
    return NEXT in text


def _check(record: Record) -> None:
    for name in ("question", "answer"):
        if not record[name].strip():
            raise ValueError(f"field {name!r} is empty")


def _unpack(records: list[Record], path: Path) -> list[Record]:
    return _on_paper([{"question": one["question"], "answers": [one["answer"]]} for one in records], path)


def _on_paper(records: list[Record], path: Path) -> list[Record]:
    """The questions with the text that lies beside ``path``."""
    paper = path.parent / Path(PAPER).name
    if not paper.is_file() or not paper.read_bytes().strip():
        raise DataError(f"{paper}: there is no text in it, and the questions are on that; put the paper there")
    return [{**record, "paper": FileRef.to(paper)} for record in records]


def records_of(folder: Path) -> list[Record]:
    """The questions on the paper of a data folder: its own, else those of the paper.

    Raises:
        DataError: ``unseen/questions.jsonl`` is there, and is not as it has to be; or there is no text.
    """
    if (folder / FILE).is_file():
        return read_records(UNSEEN, folder)
    asked: list[Record] = [{"question": asked, "answers": [*right]} for asked, right in {**EASY, **HARD}.items()]
    return _on_paper(asked, folder / FILE)


def read_unseen(data_dir: Path) -> None:
    """Read the paper and the questions on it, if the paper is there; see ``PaperTable.reads``."""
    if (data_dir / PAPER).exists():
        records_of(data_dir)


UNSEEN = Task(
    name=NAME,
    version=1,
    paper="An et al., 2024, arXiv 2402.17463, appendix A.5",
    summary="questions on a paper that the model has not seen",
    new_tokens=NEW_TOKENS,
    build=build,
    score=score,
    until=asks_on,
    data=DataFile(
        FILE,
        {"question": str, "answer": str},
        f"you: an object with your question and its answer a line, on a text of yours in {PAPER}",
        check=_check,
        unpack=_unpack,
    ),
)
