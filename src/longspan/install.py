"""How to install what is missing, from where this longspan came from."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]  # if longspan runs from its source
_OF_EVAL = {"eval": "", "lm-eval": "[lm-eval]", "ray": "[ray]"}  # extras that longspan-eval has in the same clone


def pip_install(extra: str) -> str:
    """The command that installs an extra of longspan: from the clone that it runs from, or as it was installed."""
    if (CLONE / "pyproject.toml").is_file():
        target = f"{CLONE / 'eval'}{_OF_EVAL[extra]}" if extra in _OF_EVAL else f"{CLONE}[{extra}]"
        return f"pip install -e {shlex.quote(target)}"
    return f"pip install {shlex.quote(f'longspan[{extra}]{_source()}')}"


def _source() -> str:
    """Where pip got longspan from, as a requirement states it; ``""`` for the index."""
    try:
        stated = json.loads(distribution("longspan").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    kind = stated.get("vcs_info", {}).get("vcs")
    return f" @ {kind}+{stated['url']}" if kind else f" @ {stated['url']}" if "url" in stated else ""
