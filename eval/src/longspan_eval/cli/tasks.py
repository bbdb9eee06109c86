"""Tasks by the names that the command line takes, and the list of them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from longspan.errors import LongspanError, did_you_mean
from longspan.terminal import Column, Sheet
from longspan_eval.windows import PERPLEXITY

if TYPE_CHECKING:
    from longspan_eval.task import Task


def named(names: Sequence[str]) -> tuple[Task, ...]:
    """The tasks of these names or patterns."""
    if not names:
        raise LongspanError("name at least one task; `longspan eval --list` lists them")
    from longspan_eval.tasks import TASKS

    known = every()
    found: list[Task] = []
    for name in names:
        fitting = [known[name]] if name in known else [task for key, task in TASKS.items() if fnmatchcase(key, name)]
        if not fitting:
            raise LongspanError(no_task(name))
        found += fitting
    return tuple(found)


def every() -> dict[str, Task]:
    """Every task; a pattern such as * takes only synthetic tasks and those from files."""
    from longspan_eval.tasks import TASKS

    return {**TASKS, PERPLEXITY.name: PERPLEXITY}


def no_task(name: str) -> str:
    """Why ``name`` is no task, and what it may have meant."""
    return f"unknown task {name!r}; `longspan eval --list` lists all tasks{did_you_mean(name, every())}"


def listing() -> list[dict[str, Any]]:
    """Every task, for ``--list --json``."""
    return [
        {
            "task": task.name,
            "what": task.summary,
            "depths": task.at_depths,
            "answer_tokens": task.new_tokens,
            "data": None if task.data is None else task.data.name,
            "paper": task.paper,
        }
        for task in every().values()
    ]


def sheet(found: Sequence[dict[str, Any]]) -> Sheet:
    """The same as a table."""
    columns = [Column("task", style="cyan"), Column("what it asks"), Column("answer", "right"), Column("data")]
    rows = []
    for one in found:
        data = "any text (--text)" if one["task"] == PERPLEXITY.name else one["data"] or "made"
        what = one["what"] + (" (depths)" if one["depths"] else "")
        rows.append((one["task"], what, f"{one['answer_tokens'] or '-'}", data, one["paper"]))
    return Sheet([*columns, Column("paper", style="dim")], rows)
