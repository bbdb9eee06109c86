"""The recipe for a method that chooses, followed in a copy of the library: five files, and its tests pick it up."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY = ROOT / "tests" / "support" / "toy_method.py"
PARTS = ("choosing", "methods", "oracle")
SUITE = ("tests/methods/test_methods.py", "tests/attend/test_attend.py", "tests/attend/test_consistency.py")

pytestmark = pytest.mark.long


def parts_of(text):
    """The toy's parts by the folder that each belongs to, with the imports that it uses."""
    tree, lines = ast.parse(text), text.splitlines()
    begins = {name: next(n for n, line in enumerate(lines) if f": {name}/largest_keys.py" in line) for name in PARTS}
    edges = [*sorted(begins.values()), next(n for n, line in enumerate(lines) if "tests/support/variants.py" in line)]
    imports = {
        alias.asname or alias.name: f"from {node.module} import {alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    imports |= {"torch": "import torch", "LargestKeys": "from longspan.choosing.largest_keys import LargestKeys"}
    for name, start in begins.items():
        part = "\n".join(lines[start + 1 : edges[edges.index(start) + 1]])
        used = set(re.findall(r"\w+", part)) - {"LargestKeys"}
        header = ["from __future__ import annotations", *(line for key, line in imports.items() if key in used)]
        if name == "methods":  # a method is described without torch, which its selection loads
            header += ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:", f"    {imports['LargestKeys']}"]
            signature = "    def selection(self, window: int) -> LargestKeys:\n"
            assert part.count(signature) == 1
            part = part.replace(signature, f"{signature}        {imports['LargestKeys']}\n\n")
        yield name, "\n".join(header) + "\n" + part + "\n"


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the library and its tests with the toy as one of its methods, and the files that differ."""
    root = tmp_path_factory.mktemp("copy")
    for folder in ("src", "tests", "eval"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for name, text in parts_of(TOY.read_text(encoding="utf-8")):
        (root / "src" / "longspan" / name / "largest_keys.py").write_text(text, encoding="utf-8")
    methods = root / "src" / "longspan" / "methods" / "__init__.py"
    text = methods.read_text(encoding="utf-8")
    for after, line in (
        ("from longspan.methods.infllm import InfLLM\n", "from longspan.methods.largest_keys import LargestNorm\n"),
        ("        InfLLM,\n", "        LargestNorm,\n"),
    ):
        assert text.count(after) == 1
        text = text.replace(after, after + line)
    methods.write_text(text, encoding="utf-8")
    variants = root / "tests" / "support" / "variants.py"
    from support.toy_method import IMPOSSIBLE, VARIANTS

    more = f"\nVARIANTS['largest-norm'] = {VARIANTS!r}\nIMPOSSIBLE += {IMPOSSIBLE!r}\n"
    variants.write_text(variants.read_text(encoding="utf-8") + more, encoding="utf-8")
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return root, sorted(path.relative_to(root).as_posix() for path in after if before.get(path) != after[path])


def test_five_files_are_touched(copied):
    assert copied[1] == [
        "src/longspan/choosing/largest_keys.py",
        "src/longspan/methods/__init__.py",
        "src/longspan/methods/largest_keys.py",
        "src/longspan/oracle/largest_keys.py",
        "tests/support/variants.py",
    ]


def test_the_suite_picks_it_up(copied):
    root = copied[0]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'eval' / 'src'}"}
    # Its variants are among the cases of these files; and it keeps the rule that a method is described without torch.
    for least, arguments in ((50, ["-k", "largest-norm", *SUITE]), (10, ["tests/test_lazy.py"])):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
        assert int(re.search(r"(\d+) passed", ran.stdout)[1]) >= least
