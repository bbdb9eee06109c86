"""Every public function of longspan that has tensors states their shapes, by the legend in ``bands.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/longspan"
TENSORS = re.compile(r"\bTensor\b|\bCosSin\b")
SHAPES = re.compile(r"\[[^\]]*[A-Z\d][^\]]*\]|\bany shape\b|\b[Ss]ame shapes?\b|\bshapes as for\b")

Node = ast.FunctionDef | ast.ClassDef


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def definitions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield None, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((node, each) for each in node.body if isinstance(each, ast.FunctionDef))


def takes_tensors(function: ast.FunctionDef) -> bool:
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    annotations = [
        x for x in (*(each.annotation for each in arguments if each is not None), function.returns) if x is not None
    ]
    return any(TENSORS.search(ast.unparse(x)) for x in annotations)


class Texts:
    """Docstrings of the functions and classes of some modules; an override has the docstring that it inherits."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.top = {node.name: node for tree in trees for node in tree.body if isinstance(node, Node)}

    def of(self, owner: ast.ClassDef | None, function: ast.FunctionDef) -> str:
        own = " ".join(ast.get_docstring(node) or "" for node in (function, owner) if node is not None)
        # A registered statement of the oracle has the shapes of its registry.
        named = [x for node in (function, owner) if node is not None for x in node.decorator_list]
        registries = [
            self.top[x.func.id] for x in named if isinstance(x, ast.Call) and getattr(x.func, "id", "") in self.top
        ]
        own += " ".join(ast.get_docstring(each) or "" for each in registries)
        for base in owner.bases if owner is not None else ():
            parent = self.top.get(base.id) if isinstance(base, ast.Name) else None
            if isinstance(parent, ast.ClassDef):
                same = [
                    each for each in parent.body if isinstance(each, ast.FunctionDef) and each.name == function.name
                ]
                own += self.of(
                    parent, same[0] if same else ast.FunctionDef(function.name, function.args, [ast.Pass()], [])
                )
        return own


def unstated(sources: list[str]) -> list[str]:
    """The public functions of modules that have tensors and no shape."""
    trees = [ast.parse(source) for source in sources]
    texts = Texts(trees)
    return [
        f"{owner.name}.{each.name}" if owner is not None else each.name
        for tree in trees
        for owner, each in definitions(tree)
        if (each.name == "__call__" or not each.name.startswith("_")) and takes_tensors(each)
        if not SHAPES.search(texts.of(owner, each))
    ]


def test_every_function_with_tensors_states_shapes():
    assert len(files()) > 200
    assert unstated([file.read_text("utf-8") for file in files()]) == []


def test_a_function_without_is_found_and_an_override_inherits():
    source = '''
class Base:
    def a(self, x: Tensor) -> Tensor:
        """Of ``x`` ``[B, T]``."""
    def b(self, x: Tensor) -> Tensor:
        """Of ``x``."""
class Other(Base):
    def a(self, x: Tensor) -> Tensor: ...
    def _c(self, x: Tensor) -> None: ...
def d(x: Tensor | None) -> int: ...
def f(*x: Tensor) -> None: ...
def e(x: int) -> int: ...
'''
    assert unstated([source]) == ["Base.b", "d", "f"]
