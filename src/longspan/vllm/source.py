"""Does a model's attention module rotate queries and keys and hand them straight on? Read from its source.

Where longspan attends, it rotates: the module's own rotation is taken out, and queries and keys come unrotated. That is
right only if each call rotates both, and if nothing happens to them between the rotation and the attention.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any


def unsupported_reason(module: Any, rotary: str, attention: str) -> str | None:
    """Why the rotation of an attention module cannot be left to its attention, or None.

    Args:
        module: with submodules named ``rotary`` and ``attention``, and ``forward`` as
            ``q, k = self.<rotary>(positions, q, k)`` followed by ``self.<attention>(q, k, v)``.
    """
    name = type(module).__name__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    except (OSError, TypeError, SyntaxError):
        return f"the source of {name}.forward cannot be read"
    body = tree.body[0].body if isinstance(tree.body[0], ast.FunctionDef) else []
    statements = list(_executed(body, module))
    rotations = [n for n, one in enumerate(statements) if _calls(one, rotary)]
    if len(rotations) != 1:
        count = "more than one" if rotations else "no"
        return f"{name}.forward has {count} rotation of queries and keys by self.{rotary}"
    at = rotations[0]
    pair = _rotated_pair(statements[at], rotary)
    if pair is None:
        return f"{name}.forward does not rotate queries and keys as q, k = self.{rotary}(positions, q, k)"
    following = statements[at + 1 : at + 2]
    # Of statements that hold others, a branch or a block, it is not known what runs before the call.
    plain = [one for one in following if isinstance(one, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr)]
    call = next((call for one in plain for call in _calls(one, attention)), None)
    if call is None or [arg.id if isinstance(arg, ast.Name) else None for arg in call.args[:2]] != pair:
        return f"{name}.forward does not hand rotated queries and keys straight to self.{attention}"
    return None


def _executed(body: list[ast.stmt], module: Any) -> Iterator[ast.stmt]:
    """The statements that a call runs: of an ``if`` that asks only after the module, the branch that is taken."""
    for statement in body:
        if isinstance(statement, ast.If) and (taken := _truth(statement.test, module)) is not None:
            yield from _executed(statement.body if taken else statement.orelse, module)
        else:
            yield statement


def _truth(test: ast.expr, module: Any) -> bool | None:
    """A condition's value for this module; None if it depends on anything else."""
    if any((isinstance(node, ast.Name) and node.id != "self") or isinstance(node, ast.Call) for node in ast.walk(test)):
        return None
    try:
        return bool(eval(compile(ast.Expression(test), "<condition>", "eval"), {"__builtins__": {}}, {"self": module}))
    except Exception:  # whatever a condition raises here, it is not known
        return None


def _calls(statement: ast.stmt, name: str) -> list[ast.Call]:
    """The calls of ``self.<name>`` in a statement."""
    return [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    ]


def _rotated_pair(statement: ast.stmt, rotary: str) -> list[str] | None:
    """The two names of ``a, b = self.<rotary>(positions, a, b)``, or None for any other statement."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Call) or value not in _calls(statement, rotary):
        return None
    names = [one.id if isinstance(one, ast.Name) else None for one in target.elts]
    given = [one.id if isinstance(one, ast.Name) else None for one in value.args]
    if len(names) != 2 or len(given) != 3 or value.keywords or given[1:] != names or None in names:
        return None
    return [name for name in names if name is not None]
