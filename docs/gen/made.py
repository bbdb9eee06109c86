"""What stands in a page for ``<!-- made: NAME ARGUMENTS -->``."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable
from itertools import groupby

import commands
import methods
import reference
from longspan_eval.tasks import TASKS
from sources import FILES, ROOT, SITE

sys.path.append(str(ROOT / "benchmarks"))  # after what the documentation has: it has files of the same names

import charts

_RELATIVE = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
_MARK = re.compile(r"^<!-- made: (\S+) ?(.*?) -->$", re.MULTILINE)


def fill(markdown: str) -> str:
    """A page's text with its made parts in their places.

    Raises:
        ValueError: nothing of this name can be made.
    """

    def made(match: re.Match[str]) -> str:
        if match[1] not in _MAKERS:
            raise ValueError(f"nothing makes {match[1]!r}; there are {', '.join(_MAKERS)}")
        return _MAKERS[match[1]](*filter(None, [match[2]]))

    return _MARK.sub(made, markdown)


def section(argument: str) -> str:
    """A section of a file of the repository, ``FILE.md The heading``, without its heading."""
    file, _, heading = argument.partition(" ")
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{file} has no section {heading!r}")
    return _RELATIVE.sub(
        lambda link: f"]({_address(posixpath.join(posixpath.dirname(file), link[1]))})", found[2].strip()
    )


def _address(path: str) -> str:
    """Of a file of the repository: the page it is on the site, or itself."""
    inside, _, anchor = posixpath.normpath(path).partition("#")
    if not (ROOT / inside).exists():
        raise ValueError(f"there is no {inside}")
    if inside.startswith("docs/"):
        return f"{SITE}{inside.removeprefix('docs/').removesuffix('.md').removesuffix('index')}/#{anchor}".rstrip("#")
    return f"{FILES}/{path}"


def example(name: str) -> str:
    """A script of ``examples/``, whole."""
    return f"```python\n{(ROOT / 'examples' / name).read_text(encoding='utf-8').strip()}\n```"


def chart(name: str) -> str:
    """A chart of the committed results."""
    return f"<figure>{charts.draw(name)}</figure>"


def tasks() -> str:
    """The tasks of ``longspan eval``: a table for each paper."""
    lines = []
    for paper, family in groupby(TASKS.values(), key=lambda task: task.paper):
        lines += [f"**{paper}**", "", "| task | what it asks | data |", "| --- | --- | --- |"]
        for task in family:
            data = "made" if task.data is None else f"`{task.data.name}`"
            lines.append(f"| `{task.name}` | {task.summary.replace('|', chr(92) + '|')} | {data} |")
        lines.append("")
    return "\n".join(lines)


_MAKERS: dict[str, Callable[..., str]] = {
    "facts": methods.facts,
    "formula": methods.formula,
    "picture": methods.picture,
    "parameters": methods.parameters,
    "commands": commands.commands,
    "section": section,
    "example": example,
    "tasks": tasks,
    "chart": chart,
    "names": reference.names,
}
