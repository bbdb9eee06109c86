"""Links from the documentation to files of the repository, with the line of what they name.

A page links to a file by its path, which works in a clone as well: ``[text](../src/longspan/bands.py#compose)``. The
site replaces the path by the file's address and the name by its line.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = "https://github.com/longspan/longspan/blob/main"
SITE = "https://longspan.github.io/longspan/"
_LINK = re.compile(r"(?<!!)(\[[^\]\n]*\])\((\.\.?/[^)\s]+)\)")
_OWN_SITE = re.compile(rf"\]\({re.escape(SITE)}([\w/-]+)/(#[\w-]+)?\)")
_PICTURE = re.compile(r"!\[[^\]]*\]\((\.\./[^)\s]+)\)")


def line_of(path: Path, name: str) -> int:
    """The line on which a Python file defines ``name``, such as ``Rope.rotate_q``.

    Raises:
        ValueError: it does not.
    """
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    line = 0
    for part in name.split("."):
        found = next((node for node in body if part in _defines(node)), None)
        if found is None:
            raise ValueError(f"{path.relative_to(ROOT)} defines no {name}")
        line, body = found.lineno, getattr(found, "body", [])
    return line


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def address(link: str, page: str) -> str | None:
    """The address of the repository's file that ``link`` of a page names; None for a link inside the documentation.

    Args:
        page: the page's path under ``docs``, such as ``methods/dca.md``.

    Raises:
        ValueError: there is no such file, or no such name in it.
    """
    path, _, name = link.partition("#")
    inside = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), path))
    if inside.startswith("docs/") and not inside.startswith("docs/gen/"):
        return None
    file = ROOT / inside
    if not file.exists():
        raise ValueError(f"{page} links to {inside}, which does not exist")
    if not name:
        return f"{FILES}/{inside}"
    return f"{FILES}/{inside}#L{line_of(file, name)}" if file.suffix == ".py" else f"{FILES}/{inside}#{name}"


def resolve(markdown: str, page: str) -> str:
    """A page's text: links to the repository's files become addresses, addresses of this site links to pages."""

    def outside(match: re.Match[str]) -> str:
        found = address(match[2], page)
        return match[0] if found is None else f"{match[1]}({found})"

    def inside(match: re.Match[str]) -> str:
        to = posixpath.relpath(page_of(match[1]), posixpath.dirname(page) or ".")
        return f"]({to}{match[2] or ''})"

    return _OWN_SITE.sub(inside, _LINK.sub(outside, markdown))


def page_of(address: str) -> str:
    """The page under ``docs`` at an address of the site, such as ``methods/dca`` or ``methods``."""
    folder = ROOT / "docs" / address
    return f"{address}/index.md" if folder.is_dir() else f"{address}.md"


def pictures(markdown: str, page: str) -> dict[str, Path]:
    """The repository's pictures that a page shows from outside the documentation: each link with its file."""
    found = {}
    for link in _PICTURE.findall(markdown):
        inside = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
        if not inside.startswith("docs/"):
            found[link] = ROOT / inside
    return found
