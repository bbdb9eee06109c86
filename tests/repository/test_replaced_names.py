"""Tests replace no private name of our own code; those of the core say why they replace a public one."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

PATCHES = re.compile(r"\w+\.(setattr|delattr)|(mock\.)?patch(\.object)?")  # what replaces a name, as it is called
TESTS = Path(__file__).parents[1]
CORE = ("attend", "calibration", "hf", "kernels", "methods", "recording", "selection")
OURS = ("longspan", "longspan_eval")
# Private names that a test replaces nevertheless, as "folder/file: name", with the reason.
REPLACED: dict[str, str] = {}


def replaced(source: str) -> list[tuple[int, str, bool]]:
    """Line, name and whether a comment stands above, for each call of ``PATCHES``; one comment is for a group."""
    lines, found, above = source.splitlines(), [], {}
    calls = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.Call)]
    for call in sorted((x for x in calls if PATCHES.fullmatch(ast.unparse(x.func))), key=lambda x: x.lineno):
        n = call.lineno
        before = n - 1
        while before and (above.get(before) or lines[before - 1].strip().startswith(("if ", "for "))):
            before -= 1
        above[n] = True
        names = [x.value for x in call.args[:2] if isinstance(x, ast.Constant) and isinstance(x.value, str)]
        found.append((n, (names or [""])[0], lines[before - 1].strip().startswith("#")))
    return found


def private(name: str) -> bool:
    """Whether a name, dotted or not, is or leads through a private one of ours; ``__init__`` and its like are not."""
    module, _, rest = name.partition(".")
    if rest and module not in OURS:
        return False
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def test_no_private_name_is_replaced():
    found = {
        f"{file.relative_to(TESTS).as_posix()}: {name}"
        for file in sorted(TESTS.rglob("*.py"))
        for _, name, _ in replaced(file.read_text("utf-8"))
        if private(name)
    }
    assert found == REPLACED.keys()  # a reason goes with the test that it is for


def test_every_replaced_name_in_the_core_has_a_reason():
    wrong = []
    for folder in CORE:
        for file in sorted((TESTS / folder).rglob("*.py")):
            for line, name, reason in replaced(file.read_text("utf-8")):
                if not reason:
                    wrong.append(f"{folder}/{file.name}:{line}: {name}")
    assert wrong == []


def test_benchmarks_replace_what_is_there():
    """An assignment to a name that a module of ours does not have replaces nothing, and nobody says so."""
    found, missing = 0, []
    for file in sorted((TESTS.parent / "benchmarks").glob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        ours = [x for x in nodes if isinstance(x, ast.ImportFrom) and (x.module or "").partition(".")[0] in OURS]
        origin = {alias.asname or alias.name: (x.module, alias.name) for x in ours for alias in x.names}
        for target in (one for x in nodes if isinstance(x, ast.Assign) for one in x.targets):
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", None) in origin:
                module, name = origin[target.value.id]
                owner = getattr(import_module(module), name, None) or import_module(f"{module}.{name}")
                found += 1
                missing += [] if hasattr(owner, target.attr) else [f"{file.name}: {name}.{target.attr}"]
    assert found and missing == []


def test_a_private_name_is_found():
    names = ("_a", "longspan.hf._a", "longspan_eval._a.b", "longspan.hf.a", "a", "__init__", "lm_eval._a.b")
    assert [name for name in names if private(name)] == ["_a", "longspan.hf._a", "longspan_eval._a.b"]
    source = 'patch.setattr("longspan.a._b", "c")\npatch.setattr(a, "_d", "e")\n'
    source += (
        '@mock.patch("longspan.a._f")\ndef g():\n    with mock.patch.object(a, "_h"):\n        patch.delattr(a, "_i")\n'
    )
    source += 'setattr(a, "_j", 1)\n'
    assert [name for _, name, _ in replaced(source)] == ["longspan.a._b", "_d", "longspan.a._f", "_h", "_i"]


def test_one_without_a_reason_is_found():
    group = 'def f(patch):\n    # Why.\n    patch.setattr(a, "b", 1)\n    patch.setattr(a, "c", 2)\n'
    source = group + '    x = 1\n    patch.setattr(a, "_d", 3)\n'
    assert [(name, reason) for _, name, reason in replaced(source)] == [("b", True), ("c", True), ("_d", False)]
