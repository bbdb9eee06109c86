"""The synthetic tasks of ``longspan eval`` under names for lm-eval: their prompts, and the files that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from longspan import files
from longspan.errors import LongspanError
from longspan_eval.spec import MethodSpec
from longspan_eval.studies.eval import Evaluation
from longspan_eval.task import Example, Task
from longspan_eval.tasks import TASKS

PREFIX = "longspan_"
TAG = "longspan"
LENGTHS = (4096,)
SAMPLES = 50

SYNTHETIC = {PREFIX + name: task for name, task in TASKS.items() if task.data is None}


def write_tasks(folder: Path) -> None:
    """Write a file for each task into a folder, for lm-eval's ``include_path``.

    Those of a length that is not to be chosen are not among what the name of all, ``longspan``, stands for.
    """
    for name in SYNTHETIC:
        lines = [f"task: {name}", "class: !function longspan_eval.lm_eval_harness.synthetic.SyntheticTask"]
        lines += [] if name.endswith("-official") else [f"tag: {TAG}"]
        files.write(folder / f"{name}.yaml", "\n".join(lines) + "\n")


def study_of(task: Task, metadata: Mapping[str, Any]) -> Evaluation:
    """Prompts of a task by ``--metadata``, as ``longspan eval`` would ask them.

    Args:
        metadata: ``max_seq_lengths`` (tokens of prompt and answer, one or a list), ``samples`` (prompts of each length,
            at each depth), ``depths`` and ``seed``; other keys are not for us.

    Raises:
        LongspanError: one of them is not as it must be.
    """
    lengths = metadata.get("max_seq_lengths", LENGTHS)
    lengths = tuple(lengths) if isinstance(lengths, (list, tuple)) else (lengths,)
    samples, seed, depths = metadata.get("samples", SAMPLES), metadata.get("seed", 0), metadata.get("depths")
    given = [("max_seq_lengths", length) for length in lengths] + [("samples", samples), ("seed", seed)]
    for name, value in given if depths is None else [*given, ("depths", depths)]:
        if type(value) is not int:
            raise LongspanError(f"--metadata: {name} takes whole numbers, not {value!r}")
    return Evaluation((task,), (MethodSpec(None),), lengths, samples, depths if task.at_depths else None, seed)


def prompts(study: Evaluation, tokenizer: Any) -> Iterator[tuple[int, Example]]:
    """Every length and prompt of a study of one task.

    The lengths take turns, so that what ``--limit`` leaves has all of them.

    Raises:
        LongspanError: a length is too short for the task.
    """
    (task,) = study.tasks
    study.check(tokenizer)
    for seed, depth, _ in study.prompts(task):
        for length in study.lengths:
            yield length, task.build(tokenizer, length=length, seed=seed, depth=depth)
