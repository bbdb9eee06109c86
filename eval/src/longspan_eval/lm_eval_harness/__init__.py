"""lm-evaluation-harness with longspan: extended models as ``--model longspan``, synthetic tasks as ``longspan_*``.

``arguments`` and ``tasks`` do not import lm-eval; ``model`` and ``synthetic`` have subclasses of its classes, and
``cli`` is its command line, installed as ``longspan-lm-eval``. In a program of your own, importing
``longspan_eval.lm_eval_harness.model`` registers the model, and ``TaskManager(include_path=…)`` takes a folder that
``write_tasks`` filled.
"""
