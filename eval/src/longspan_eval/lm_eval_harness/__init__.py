"""lm-evaluation-harness with longspan in it: extended models as ``--model longspan``, made tasks as ``longspan_*``.

``arguments`` and ``tasks`` get along without lm-eval; ``model`` and ``made`` are subclasses of its own, and ``cli`` its
command line, installed as ``longspan-lm-eval``. In a program of your own, importing
``longspan_eval.lm_eval_harness.model`` registers the model, and ``TaskManager(include_path=…)`` takes a folder that
``write_tasks`` filled.
"""
