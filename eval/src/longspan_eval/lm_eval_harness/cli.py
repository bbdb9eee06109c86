"""``longspan-lm-eval``: lm-eval's own command line, with ``--model longspan`` and the tasks ``longspan_*`` in it."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longspan import signals
from longspan.errors import LongspanError
from longspan.install import pip_install
from longspan.loading.models import is_gguf, tokenizer_source
from longspan.loading.names import is_short, path_of

MODEL = "longspan"


def main() -> None:
    """Run lm-eval with the process's arguments."""
    try:
        signals.install("longspan-lm-eval")
        require()
        _run()
    except signals.Stopped as stopped:
        signals.leave(stopped.number)
    except LongspanError as error:
        print(f"longspan-lm-eval: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


def require() -> None:
    """Raise LongspanError if lm-eval is not installed."""
    if find_spec("lm_eval") is None:
        raise LongspanError(f"lm-eval is missing: {pip_install('lm-eval')}")


def _run() -> None:
    from lm_eval._cli import HarnessCLI
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.utils import setup_logging

    import longspan_eval.lm_eval_harness.model  # noqa: F401  # registers itself
    from longspan_eval.lm_eval_harness.tasks import write_tasks

    setup_logging()
    parser = HarnessCLI()
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longspan-tasks-") as folder:
        write_tasks(Path(folder))
        file = getattr(args, "config", None)
        prepare(args, EvaluatorConfig.load_yaml_config(file) if file else {}, folder)
        parser.execute(args)


def prepare(args: Any, written: dict[str, Any], folder: str) -> None:
    """Change parsed arguments so that lm-eval finds our tasks and what a short name is.

    Args:
        args: as lm-eval's parser gives them.
        written: the contents of the file that ``--config`` names.
        folder: with the tasks' files.
    """
    if hasattr(args, "include_path"):
        theirs = args.include_path or written.get("include_path") or []
        args.include_path = [folder, *([theirs] if isinstance(theirs, (str, Path)) else theirs)]
    if not hasattr(args, "model_args"):
        return
    given = args.model_args or written.get("model_args") or {}
    # lm-eval hands these on to tasks that need a tokenizer, RULER's among them, and those know folders and hub names.
    if isinstance(given, str):
        from lm_eval.utils import simple_parse_args_string

        given = simple_parse_args_string(given)
    named = {key: path_of(given[key]) for key in ("pretrained", "tokenizer") if is_short(given.get(key))}
    model = {**given, **named}
    words = str(model.get("tokenizer") or model.get("pretrained") or "")
    if is_gguf(words):
        named["tokenizer"] = tokenizer_source(words)
    if named:
        args.model_args = {**given, **named}
    ours = (args.model or written.get("model")) == MODEL
    if ours and not args.device and not written.get("device"):
        args.device = "auto"  # lm-eval's default is the first GPU, there or not
