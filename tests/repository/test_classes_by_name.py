"""The code that runs methods asks no object which method, selection or position map it is: those state what differs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from longspan.methods.base import Method

ROOT = Path(__file__).parents[2] / "src" / "longspan"
AXES = "methods", "selection", "choosing", "positions"
RUN = "attend", "kernels", "hf", "memory", "model"
# extend takes a name, a method or angles, and refuses anything else.
ANY_METHOD = {("hf/prepare.py", Method.__name__)}


def classes_of(folders):
    trees = [ast.parse(path.read_text(encoding="utf-8")) for name in folders for path in (ROOT / name).rglob("*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def names_in(node):
    parts = list(ast.walk(node))
    return {x.id for x in parts if isinstance(x, ast.Name)} | {x.attr for x in parts if isinstance(x, ast.Attribute)}


def asked(tree):
    """The names of all classes that ``isinstance``, ``issubclass`` or a comparison with ``type(x)`` asks for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            if node.func.id in ("isinstance", "issubclass"):
                yield from names_in(node.args[1])
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(x, ast.Call) and isinstance(x.func, ast.Name) and x.func.id == "type" for x in sides):
                yield from (name for side in sides for name in names_in(side))


@pytest.mark.parametrize("folder", RUN)
def test_no_method_selection_or_position_map_is_asked_for_by_name(folder):
    known = classes_of(AXES)
    assert {"DCA", "Full", "Chunks", "Choosing", "Chunked"} <= known
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / folder).rglob("*.py")
        for name in asked(ast.parse(path.read_text(encoding="utf-8")))
        if name in known
    }
    assert found <= ANY_METHOD


def test_what_asks_is_found():
    tree = ast.parse("isinstance(x, (DCA, methods.ESA)) or type(y) is Chunks or x is Full")
    assert {"DCA", "ESA", "Chunks"} <= set(asked(tree)) and "Full" not in set(asked(tree))
