"""Every task by name. Adding one is one file here and one line below.

A synthetic task derives everything from the tokenizer, the length, the seed and the depth; ``ruler_tracing.py`` is a
short one. ``fragments.py`` tokenizes what a prompt is put together from, ``haystack.py`` has texts to hide things in,
``hiding.py`` what tasks share that hide sentences in one, ``scores.py`` the scores.
``tests/longspan_eval/tasks/test_every_task.py`` tests every task, ``test_prompts_stay.py`` beside it has a digest of
its prompts. A task from data names its ``DataFile``; ``leval.py`` is a short one.
"""

from __future__ import annotations

from longspan_eval.task import Task
from longspan_eval.tasks.common_words import COMMON_WORDS
from longspan_eval.tasks.counting_stars import COUNTING_STARS
from longspan_eval.tasks.facts import FACTS
from longspan_eval.tasks.fewshot import FEWSHOT
from longspan_eval.tasks.infinitebench_choice import INFINITEBENCH_CHOICE
from longspan_eval.tasks.infinitebench_synthetic import INFINITEBENCH_SYNTHETIC
from longspan_eval.tasks.key_value import KEY_VALUES
from longspan_eval.tasks.leval import LEVAL
from longspan_eval.tasks.longbench import LONGBENCH, LONGBENCH_E
from longspan_eval.tasks.multi_needle import MULTI_NEEDLE
from longspan_eval.tasks.needle import NEEDLES
from longspan_eval.tasks.passkey import PASSKEYS
from longspan_eval.tasks.ruler_niah import RULER_NIAH
from longspan_eval.tasks.ruler_qa import RULER_QA
from longspan_eval.tasks.ruler_tracing import RULER_TRACING, SHORT_TRACING
from longspan_eval.tasks.ruler_words import RULER_WORDS

__all__ = ["TASKS"]

FAMILIES: tuple[tuple[Task, ...], ...] = (
    PASSKEYS,
    FACTS,
    KEY_VALUES,
    SHORT_TRACING,
    COMMON_WORDS,
    NEEDLES,
    MULTI_NEEDLE,
    COUNTING_STARS,
    INFINITEBENCH_SYNTHETIC,
    INFINITEBENCH_CHOICE,
    RULER_NIAH,
    RULER_TRACING,
    RULER_WORDS,
    RULER_QA,
    LONGBENCH,
    LONGBENCH_E,
    LEVAL,
    FEWSHOT,
)

TASKS: dict[str, Task] = {task.name: task for family in FAMILIES for task in family}
"""Every task by its name."""
if len(TASKS) != sum(map(len, FAMILIES)):
    raise RuntimeError("two tasks have the same name")
