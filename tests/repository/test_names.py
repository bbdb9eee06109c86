"""Names of both packages: no two classes share one, and no file grows beyond what one subject needs."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import longspan
import longspan_eval

PACKAGES = tuple(Path(one.__file__).parent for one in (longspan, longspan_eval))
LONGEST = 350  # lines of a file
# Names that several classes may share, with the reason, such as one implementation of a protocol for each backend.
SHARED: dict[str, str] = {}


def shared_names(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The files that define each name of several classes at the top level; a leading underscore makes no other name.

    Args:
        sources: each file's name and text.
    """
    files = defaultdict(list)
    for file, source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                files[node.name.lstrip("_")].append(file)
    return {name: where for name, where in files.items() if len(where) > 1}


def modules() -> list[tuple[str, str]]:
    """Name, with the package's, and text of each file of both packages."""
    return [
        (str(path.relative_to(package.parent)), path.read_text("utf-8"))
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
    ]


def test_no_two_classes_share_a_name():
    found = Counter(Path(file).parts[0] for file, _ in modules())
    assert found["longspan"] > 200 and found["longspan_eval"] > 60
    shared = shared_names(modules())
    assert {name: files for name, files in shared.items() if name not in SHARED} == {}
    assert SHARED.keys() <= shared.keys()  # a reason goes with the classes that it is for


def test_a_shared_name_is_found():
    sources = [
        ("a.py", "class _Rows: ..."),
        ("b.py", "class Rows: ...\nclass Keys:\n    class Inner: ..."),
        ("c.py", ""),
    ]
    assert shared_names(sources) == {"Rows": ["a.py", "b.py"]}


def test_no_file_is_too_long():
    lines = {file: len(source.splitlines()) for file, source in modules()}
    assert {file: count for file, count in lines.items() if count > LONGEST} == {}


def test_every_package_of_the_library_has_its_tests():
    tests = Path(__file__).parents[1]
    packages = [path.parent.name for path in PACKAGES[0].glob("*/__init__.py")]
    assert len(packages) > 15
    assert [name for name in packages if not list((tests / name).glob("test_*.py"))] == []
