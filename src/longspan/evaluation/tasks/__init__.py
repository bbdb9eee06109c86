"""Every task by name. Adding one is one file here and one line below."""

from __future__ import annotations

from longspan.evaluation.task import Task
from longspan.evaluation.tasks.passkey import PASSKEY

TASKS: dict[str, Task] = {task.name: task for task in (PASSKEY,)}
