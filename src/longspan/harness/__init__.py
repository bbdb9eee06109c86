"""lm-evaluation-harness with longspan in it: extended models as ``--model longspan``, our made tasks as ``longspan_*``.

``arguments`` and ``tasks`` get along without lm-eval; ``model`` and ``made`` are its subclasses, and ``cli`` its command
line. The command is ``longspan-lm-eval``; in a program of your own, importing ``longspan.harness.model`` registers the
model, and ``TaskManager(include_path=…)`` takes a folder that ``write_tasks`` filled.
"""
