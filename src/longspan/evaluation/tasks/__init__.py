"""Every task by name. Adding one is one file here and one line below."""

from __future__ import annotations

from longspan.evaluation.task import Task
from longspan.evaluation.tasks.fewshot import FEWSHOT
from longspan.evaluation.tasks.infinitebench_choice import INFINITEBENCH_CHOICE
from longspan.evaluation.tasks.leval import LEVAL
from longspan.evaluation.tasks.longbench import LONGBENCH, LONGBENCH_E
from longspan.evaluation.tasks.ruler_qa import RULER_QA

_ALL: tuple[tuple[Task, ...], ...] = (
    RULER_QA,
    INFINITEBENCH_CHOICE,
    LONGBENCH,
    LONGBENCH_E,
    LEVAL,
    FEWSHOT,
)

TASKS: dict[str, Task] = {task.name: task for family in _ALL for task in family}
