"""Imports run one way: rope, selection, positions → kernels → choosing → methods → attend → model → hf → above."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import longspan
import longspan_eval

ROOT = Path(longspan.__file__).parent
EVAL = Path(longspan_eval.__file__).parent
BELOW_ATTEND = {"bands", "calibration", "choosing", "deferred", "dtypes", "errors", "kernels", "machine", "memory"}
BELOW_ATTEND |= {"methods", "positions", "rope", "selection", "terms"}

# What each part may import of longspan besides itself; parts not named here may import anything.
ALLOWED: dict[str, set[str]] = {
    "dtypes": set(),
    "errors": set(),
    "install": set(),
    "deferred": set(),
    "terminal": set(),
    "terms": set(),
    "files": set(),
    "signals": set(),
    "machine": set(),
    "text": {"errors", "files", "install"},
    "rope": {"deferred", "errors"},
    "bands": {"deferred"},
    "selection": {"bands", "deferred"},
    "positions": {"bands", "deferred"},
    "oracle": {"rope"},
    "calibration": {"errors", "files", "install", "terminal"},
    "kernels": {"dtypes", "errors", "files", "install", "rope", "signals"},
    "memory": {"errors", "machine"},
    "choosing": BELOW_ATTEND - {"choosing", "deferred", "machine", "methods"},
    "methods": {"bands", "calibration", "choosing", "errors", "positions", "rope", "selection", "terms"},
    "attend": BELOW_ATTEND - {"machine"},
    "paged": (BELOW_ATTEND | {"attend"}) - {"calibration", "machine", "memory"},
    "model": BELOW_ATTEND | {"attend", "terminal"},
    "hf": BELOW_ATTEND | {"attend", "drafting", "model", "terminal", "text", "weights"},
    "weights": {"errors", "kernels"},
    "drafting": set(),
    "loading": {"bundled", "deferred", "errors", "files", "hf", "install", "kernels", "machine", "methods", "model"}
    | {"rope", "weights"},
}
# The same for parts above, by what they must not reach for.
FORBIDDEN: dict[str, set[str]] = {"bundled": {"cli", "recording"}, "recording": {"cli", "bundled"}}
FORBIDDEN |= {"doctor": {"cli", "bundled", "recording"}, "documents": {"cli", "bundled", "doctor", "serve", "vllm"}}
FORBIDDEN |= {"serve": {"cli", "doctor", "vllm"}}
FORBIDDEN |= {"vllm": {"cli", "bundled", "doctor", "documents", "hf", "memory", "oracle", "recording", "serve"}}
# And in longspan_eval, by the folders that a folder must not reach for; "" is what lies beside the folders.
FORBIDDEN_IN_EVAL: dict[str, set[str]] = {
    "": {"analysis", "cli", "lm_eval_harness", "report", "reproduce", "studies", "tune"},
    "tasks": {"cli", "analysis", "lm_eval_harness", "report", "reproduce", "studies", "tune"},
    "report": {"cli", "analysis", "lm_eval_harness", "reproduce", "studies"},
    "studies": {"cli", "analysis", "lm_eval_harness", "reproduce"},
    "analysis": {"cli", "lm_eval_harness", "reproduce", "studies"},
    "reproduce": {"cli", "lm_eval_harness"},
    "tune": {"cli", "analysis", "lm_eval_harness", "report", "reproduce", "studies"},
    "cli": {"lm_eval_harness"},
    "lm_eval_harness": {"analysis", "cli", "reproduce"},
}


def module_name(path: Path) -> str:
    root = EVAL if path.is_relative_to(EVAL) else ROOT
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join((root.name, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported(path: Path) -> set[str]:
    """Modules of longspan that a file imports, anywhere in it; type-checking imports count."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from package import name` imports the module package.name where there is one.
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name if exists(name) else module for name in names}
    return {name for name in found if name.split(".")[0] in ("longspan", "longspan_eval")}


def exists(name: str) -> bool:
    path = (EVAL if name.split(".")[0] == EVAL.name else ROOT).parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def part(name: str) -> str:
    """The file or folder directly under longspan; empty for the package itself."""
    return ([*name.split("."), ""])[1]


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
EVAL_FILES = {module_name(path): path for path in sorted(EVAL.rglob("*.py"))}


def wrong_arrows() -> Iterator[str]:
    """Each import of the library and of the evaluation that the law forbids."""
    for name, path in FILES.items():
        own, targets = part(name), imported(path)
        others = {part(target) for target in targets} - {own}
        if own in ALLOWED:
            yield from (f"{name} may not import {other}" for other in sorted(others - ALLOWED[own]))
        yield from (f"{name} may not import {other}" for other in sorted(others & FORBIDDEN.get(own, set())))
        yield from (f"{name} may not import {each}" for each in sorted(targets) if each.startswith("longspan_eval"))
    for name, path in EVAL_FILES.items():
        inside = {_folder(target) for target in imported(path) if target.startswith("longspan_eval")}
        forbidden = inside & FORBIDDEN_IN_EVAL[_folder(name)]
        yield from (f"{name} may not import {other}" for other in sorted(forbidden))
    for name in FILES:
        if name.startswith("longspan.kernels.") and name.count(".") == 3:
            yield from (f"{name}, an implementation, may not import {other}" for other in sorted(_siblings(name)))


def _folder(module: str) -> str:
    path = EVAL_FILES.get(module)
    return path.relative_to(EVAL).parts[0] if path is not None and path.parent != EVAL else ""


def _siblings(name: str) -> set[str]:
    """The modules of other implementations that a kernel's implementation imports."""
    folder = name.rpartition(".")[0]
    siblings = {target for target in imported(FILES[name]) if target.startswith("longspan.kernels.")}
    siblings -= {"longspan.kernels.dispatch"}  # which implementation runs
    siblings -= {x for x in siblings if x.startswith(("longspan.kernels.cpu", "longspan.kernels.gpu"))}  # shared
    siblings -= {x for x in siblings if x.endswith(".contract")}  # what a kernel takes, which computes nothing
    siblings -= {x for x in siblings if x.count(".") == 2 and x != folder}  # another kernel, by its contract
    return siblings - {name, folder, f"{folder}.plan", f"{name}_jit", f"{name}_jit_chunk"}


def test_imports_run_one_way():
    assert list(wrong_arrows()) == []


def circles(arrows):
    """Groups of modules that reach each other by imports: those that are left when others are taken away."""
    left = {name: targets & arrows.keys() - {name} for name, targets in arrows.items()}
    while True:
        into = set().union(*left.values()) if left else set()
        ends = {name for name, targets in left.items() if not targets or name not in into}
        if not ends:
            return left
        left = {name: targets - ends for name, targets in left.items() if name not in ends}


def test_no_circles():
    assert not circles({name: imported(path) for name, path in {**FILES, **EVAL_FILES}.items()})


def test_circles_are_found():
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert circles(arrows) == {"b": {"c"}, "c": {"b"}}


def test_a_wrong_import_is_named(monkeypatch):
    monkeypatch.setitem(ALLOWED, "memory", set())
    named = list(wrong_arrows())
    assert named and all(re.fullmatch(r"longspan\.memory\S* may not import (errors|machine)", one) for one in named)


def test_the_parser_sees_imports():
    assert imported(FILES["longspan.attend.steps.general"]) >= {
        "longspan.rope",
        "longspan.kernels.banded",
        "longspan.memory",
    }
    assert imported(FILES["longspan.kernels.banded"]) >= {"longspan.kernels.banded.torch_ops", "longspan.rope"}
