"""Tasks that the bundled model can do inside its window, by its card: those that say something beyond it."""

from __future__ import annotations

from longspan.bundled import card
from longspan_eval.task import Task
from longspan_eval.tasks import TASKS

LEAST = 0.8
"""The mean score in the window from which on a task counts as one that the model can do."""


def tasks_in_window() -> tuple[Task, ...]:
    """Tasks of ``longspan eval`` that the bundled model answers in its window with a mean score of at least ``LEAST``.

    In the order of ``TASKS``. Beyond the window a task that is at nothing inside it cannot tell methods apart.
    """
    figures = card()["tasks"]
    return tuple(task for name, task in TASKS.items() if name in figures and figures[name]["score"] >= LEAST)
