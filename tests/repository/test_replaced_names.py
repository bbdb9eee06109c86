"""Tests of the core replace no private name, and say why they replace a public one."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
CORE = ("attend", "calibration", "hf", "kernels", "methods", "recording", "selection")


def replaced(source: str) -> list[tuple[int, str, bool]]:
    """Line, name and whether a comment stands above, for each ``setattr`` of a patch; one comment is for a group."""
    lines, found, above = source.splitlines(), [], {}
    calls = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute)]
    for call in sorted((x for x in calls if x.func.attr == "setattr"), key=lambda x: x.lineno):
        n = call.lineno
        before = n - 1
        while before and (above.get(before) or lines[before - 1].strip().startswith(("if ", "for "))):
            before -= 1
        above[n] = True
        names = [x.value for x in call.args[:2] if isinstance(x, ast.Constant) and isinstance(x.value, str)]
        found.append((n, (names or [""])[-1], lines[before - 1].strip().startswith("#")))
    return found


def test_every_replaced_name_is_public_and_has_a_reason():
    wrong = []
    for folder in CORE:
        for file in sorted((TESTS / folder).rglob("*.py")):
            for line, name, reason in replaced(file.read_text("utf-8")):
                if not reason or name.startswith("_"):
                    wrong.append(f"{folder}/{file.name}:{line}: {name}")
    assert wrong == []


def test_one_without_a_reason_is_found():
    group = 'def f(patch):\n    # Why.\n    patch.setattr(a, "b", 1)\n    patch.setattr(a, "c", 2)\n'
    source = group + '    x = 1\n    patch.setattr(a, "_d", 3)\n'
    assert [(name, reason) for _, name, reason in replaced(source)] == [("b", True), ("c", True), ("_d", False)]
