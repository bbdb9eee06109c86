"""The API reference: pages of packages beside those of topics, a list by letter, and what has no page or docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import longspan
import longspan_eval
from sources import ROOT

DOCS = ROOT / "docs"
_SHOWN = re.compile(r"^::: (\S+)", re.MULTILINE)
# How attention is carried out. No user calls it, so its names have docstrings and no page.
_INSIDE = frozenset(f"longspan.{name}" for name in ("attend", "calibration", "doctor", "documents", "hf", "memory"))


@cache
def packages() -> tuple[str, ...]:
    """Packages of the reference: ``longspan``, and in both distributions those with ``__all__``."""
    found = [f"longspan.{each.name}" for each in pkgutil.iter_modules(longspan.__path__)]
    found += [f"longspan_eval.{each.name}" for each in pkgutil.iter_modules(longspan_eval.__path__) if each.ispkg]
    return "longspan", *(name for name in found if hasattr(importlib.import_module(name), "__all__"))


def topics() -> dict[str, str]:
    """The written pages by their path under ``docs``, each of a topic."""
    return {f"api/{path.name}": path.read_text(encoding="utf-8") for path in sorted((DOCS / "api").glob("*.md"))}


def pages() -> dict[str, str]:
    """The generated pages by their path under ``docs``, for authors of methods: the names that no page before has."""
    documented = {id(_object(name)): name for text in topics().values() for name in _SHOWN.findall(text)}
    made = {}
    for package in packages()[1:]:
        if package in _INSIDE:
            continue
        module = importlib.import_module(package)
        lines = [f"# {package}", "", _opening(module), ""]
        elsewhere, here = [], []
        for name in sorted(module.__all__, key=str.lower):
            full = _path(package, name)
            found = id(_object(full))
            if found in documented:
                elsewhere.append((name, documented[found]))
            else:
                documented[found] = full
                here.append((name, full))
        lines += [f"::: {full}\n" for _, full in here]
        if elsewhere:
            lines += ["Documented elsewhere: " + ", ".join(f"[`{name}`][{known}]" for name, known in elsewhere) + "."]
        made[f"api/{package}.md"] = "\n".join(lines) + "\n"
    return made


def names() -> str:
    """A table of the names of ``import longspan`` by letter, with the first sentence of each."""
    shown = {id(_object(name)): name for text in topics().values() for name in _SHOWN.findall(text)}
    lines = ["| name | |", "| --- | --- |"]
    for name in sorted(longspan.__all__, key=str.lower):
        found = getattr(longspan, name)
        said = inspect.getdoc(found) if inspect.isclass(found) or callable(found) else "All methods by their names."
        first = " ".join((said or "").partition("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")
        lines.append(f"| [`{name}`][{shown[id(found)]}] | {first} |")
    return "\n".join(lines)


def _path(package: str, name: str) -> str:
    """The place of a name; if a module has the same name, the place of its definition."""
    full = f"{package}.{name}"
    found = getattr(importlib.import_module(package), name)
    return f"{found.__module__}.{found.__qualname__}" if full in sys.modules else full


def _opening(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "")


def _object(name: str) -> object:
    package, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(package), attribute)


def undocumented() -> list[str]:
    """Public names without a docstring, or on no page of the reference."""
    every = (*topics().values(), *pages().values())
    shown = {id(_object(name)) for text in every for name in _SHOWN.findall(text)}
    wrong = []
    for package in packages():
        module = importlib.import_module(package)
        for name in module.__all__:
            found = getattr(module, name)
            if id(found) not in shown and package not in _INSIDE:
                wrong.append(f"{package}.{name} is on no page of the reference")
            if not _has_docstring(module, name, found):
                wrong.append(f"{package}.{name} has no docstring")
    return wrong


def _has_docstring(module: ModuleType, name: str, found: object) -> bool:
    if inspect.isclass(found):
        return bool(vars(found).get("__doc__"))
    if (callable(found) and hasattr(found, "__wrapped__")) or inspect.isfunction(found):
        return bool(found.__doc__)
    return any(_attribute_docstring(file, name) for file in _defining(module, name))


def _defining(module: ModuleType, name: str) -> list[Path]:
    """The files in which a module's constant may be assigned: its own, and those that it imports it from."""
    own = Path(inspect.getsourcefile(module) or "")
    files = [own]
    for node in ast.walk(ast.parse(own.read_text(encoding="utf-8"))):  # those for type checkers alone too
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            files.append(Path(inspect.getsourcefile(importlib.import_module(node.module)) or ""))
    return files


def _attribute_docstring(file: Path, name: str) -> bool:
    """Whether the assignment of ``name`` is followed by a string."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for node, following in pairwise(body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            value = getattr(following, "value", None)
            return isinstance(following, ast.Expr) and isinstance(getattr(value, "value", None), str)
    return False
