"""Collect and clean the training text: docstrings and comments of the standard library, its topics, licences.

Everything comes from files that any Python installation (and any Debian, for the licences) already has;
nothing is downloaded. The order is deterministic. The held-out text ships with the package, so the figures do
not depend on the Python version: `training_documents` drops every paragraph that overlaps it.

    python training/corpus.py                    # print sizes
    python training/corpus.py --write-heldout F  # how heldout.txt was made (Python 3.11)
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import inspect
import re
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

HELDOUT = Path(__file__).resolve().parents[1] / "src" / "longspan" / "bundled" / "heldout.txt"
LICENCES = Path("/usr/share/common-licenses")
HELDOUT_BYTES = 360_000
SHINGLE = 8  # words; a paragraph sharing such runs with the held-out text is not trained on
# Drawn for the held-out text, but under notices of their own: these are neither shipped nor trained on.
LEFT_OUT = {
    "venv/__init__.py",
    "asynchat.py",
    "trace.py",
    "re/_compiler.py",
    "re/__init__.py",
    "optparse.py",
    "tarfile.py",
}
SKIPPED_FOLDERS = {"test", "tests", "site-packages", "idlelib", "__pycache__", "lib2to3"}


def clean(text: str) -> list[str]:
    """Prose paragraphs of `text`, one line each: examples, tables, signatures and rulers are dropped."""
    paragraphs = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text.expandtabs())):
        lines = [line for line in block.splitlines() if not line.lstrip().startswith((">>>", "..."))]
        line = re.sub(r"\s+", " ", " ".join(lines)).strip()
        line = re.sub(r"[-=~*#_+]{4,}", "", line).strip()
        if is_prose(line):
            paragraphs.append(line)
    return paragraphs


def is_prose(line: str) -> bool:
    """True for a line of at least eight words that is made of letters, ASCII, and ends as a sentence does."""
    if len(line.split()) < 8 or not line.isascii() or line[-1] not in '.:!?)"':
        return False
    letters = sum(ch.isalpha() or ch in " ,.'\"()-" for ch in line)
    return letters >= 0.95 * len(line) and max(map(len, line.split())) <= 30


def library_documents() -> Iterator[tuple[str, str]]:
    """Name and raw docstrings and comment blocks of each file of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS & set(path.relative_to(root).parts) or path.name == "topics.py":
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        nodes.sort(key=lambda node: getattr(node, "lineno", 0))
        parts = [ast.get_docstring(node) or "" for node in nodes]
        yield path.relative_to(root).as_posix(), "\n\n".join(p for p in [*parts, *comment_blocks(path)] if p)


def comment_blocks(path: Path) -> Iterator[str]:
    """Runs of whole-line comments in a source file, without their `#`."""
    block: list[str] = []
    last = -1
    with tokenize.open(path) as file:
        for number, line in enumerate(file):
            stripped = line.strip()
            if stripped.startswith("#"):
                if number != last + 1 and block:
                    yield "\n".join(block)
                    block = []
                block.append(stripped.lstrip("#").strip())
                last = number
    if block:
        yield "\n".join(block)


def builtin_documents() -> Iterator[str]:
    """Docstrings of the modules written in C, one document for each module."""
    names = """
    builtins itertools math _functools _io posix _socket _struct time _collections _datetime _decimal _sqlite3
    _ssl sys zlib _thread gc
    """
    for name in names.split():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        parts = [module.__doc__ or ""]
        for key in sorted(vars(module)):
            item = getattr(module, key)
            parts.append(getattr(item, "__doc__", None) or "")
            if inspect.isclass(item):
                members = [getattr(item, sub, None) for sub in sorted(vars(item))]
                parts += [getattr(member, "__doc__", None) or "" for member in members]
        yield "\n\n".join(part for part in parts if isinstance(part, str))


def topics() -> dict[str, str]:
    """The language reference that ships with Python as `pydoc_data.topics`, by name."""
    return dict(sorted(importlib.import_module("pydoc_data.topics").topics.items()))


def licence_documents() -> Iterator[str]:
    """Licence texts of the system, if there are any."""
    if LICENCES.is_dir():
        for path in sorted(LICENCES.iterdir()):
            if path.is_file() and not path.is_symlink():
                yield path.read_text(encoding="utf-8", errors="ignore")


def shingles(line: str) -> set[int]:
    """Hashes of the runs of `SHINGLE` words in a line."""
    words = re.findall(r"[a-z]+", line.lower())
    return {hash(tuple(words[i : i + SHINGLE])) for i in range(max(1, len(words) - SHINGLE + 1))}


def make_heldout() -> str:
    """Topics and library files picked by the hash of their name until `HELDOUT_BYTES`; no paragraph twice."""
    seen: set[str] = set()
    documents: list[str] = []
    size = 0
    pool = [*topics().items(), *library_documents()]
    for name, text in sorted(pool, key=lambda item: hashlib.sha256(item[0].encode()).hexdigest()):
        fresh = []
        for line in clean(text):
            if line not in seen:
                seen.add(line)
                fresh.append(line)
        if sum(map(len, fresh)) < 1000:
            continue
        size += sum(map(len, fresh)) + len(fresh) + 1
        if name not in LEFT_OUT:
            documents.append("\n".join(fresh))
        if size >= HELDOUT_BYTES:
            break
    return "\n\n".join(documents) + "\n"


def training_documents(heldout: str) -> list[str]:
    """Cleaned documents that share nothing with the held-out text (paragraphs are lines)."""
    forbidden: set[int] = set()
    left_out = [line for name, text in library_documents() if name in LEFT_OUT for line in clean(text)]
    for line in [*heldout.splitlines(), *left_out]:
        forbidden |= shingles(line)
    seen: set[str] = set()
    documents = []
    for text in raw_documents():
        kept = []
        for line in clean(text):
            marks = shingles(line)
            if line in seen or len(marks & forbidden) > 0.1 * len(marks):
                continue
            seen.add(line)
            kept.append(line)
        if sum(map(len, kept)) >= 200:
            documents.append("\n".join(kept))
    return documents


def raw_documents() -> Iterable[str]:
    """All the sources, in a fixed order."""
    yield from topics().values()
    yield from licence_documents()
    yield from builtin_documents()
    yield from (text for _, text in library_documents())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write-heldout", type=Path)
    args = parser.parse_args()
    if args.write_heldout:
        args.write_heldout.write_text(make_heldout(), encoding="utf-8")
    heldout = HELDOUT.read_text(encoding="utf-8")
    documents = training_documents(heldout)
    print(
        f"held out: {len(heldout):,} characters; training: {len(documents)} documents, "
        f"{sum(map(len, documents)):,} characters"
    )


if __name__ == "__main__":
    main()
