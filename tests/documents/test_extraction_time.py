"""The text of a file is extracted in time that grows with its size, whatever is repeated or nested in it."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from support.extraction import seconds
from support.pdf_files import page_of

pytest.importorskip("selectolax")
pytest.importorskip("pypdf")


def repeated(unit, before="<p>x", after=""):
    return lambda size: before + unit * (size // len(unit)) + after


PAGES = {
    "marked text": repeated("<![CDATA["),
    "marked and closed": repeated("<![CDATA[a]]>"),
    "comments": repeated("<!--"),
    "signs": repeated("<"),
    "tags without an end": repeated("<a "),
    "scripts": repeated("<script "),
    "raw text": repeated("<title><textarea></style>"),
    "empty in XML": repeated("<title/"),
    "empty with quotes": repeated("<title a='>"),
    "quotes": repeated("b='", "<p>x<a "),
    "attributes": lambda size: "<p>x<a " + " ".join(f"b{n:07}=1" for n in range(size // 10)) + ">",
    "attributes in a drawing": lambda size: (
        "<p>x<svg><title/><a " + " ".join(f"b{n:07}=1" for n in range(size // 10)) + ">"
    ),
    "options": repeated("<option>y", "<p>x<select>"),
    "groups": repeated("<optgroup><option>y</optgroup>", "<p>x<select>"),
    "elements": repeated("<div></div>"),
    "in one another": repeated("<div>"),
    "in many": repeated("<i></i>", "<div>" * 900 + "<p>x"),
    "paragraphs in many": lambda size: (
        "".join(f"<b id=b{n:04}>" for n in range(100)) + "<p>y" * ((size - 13 * 100) // 4)
    ),
    "bold": repeated("<b><p>y"),
    "bold, closed later": repeated("<b><div></b>"),
    "cells": repeated("<tr><td>y", "<p>x<table>"),
    "beside cells": repeated("y<tr>", "<p>x<table>"),
    "lists": repeated("<ul><li>y"),
    "ends": repeated("</p>"),
    "references": repeated("&amp;&#65;&#"),
    "a number": repeated("9", "<p>x&#"),
    "lines": repeated("<br>\u2028"),
    "breaks": repeated("<br>"),
}
IN_PDF = {
    "texts": repeated("(x) Tj "),
    "moved": repeated("1 1 Td (x) Tj "),
    "states": repeated("q "),
    "states left": repeated("q Q "),
    "blocks": repeated("BT (x) Tj ET "),
    "arrays": repeated("[(x)] TJ "),
    "in arrays": repeated("["),
    "in dictionaries": repeated("<<"),
    "brackets": repeated("("),
    "names": repeated("/N "),
    "numbers": repeated("1 "),
    "unknown": repeated("zz "),
    "escapes": repeated("\\101", "BT /F 12 Tf 9 9 Td ("),
    "pictures": repeated("BI /W 1 ID x EI "),
    "comments": repeated("%x\n"),
    "fonts": repeated("/F 12 Tf (x) Tj "),
}
CASES = [(suffix, name, PAGES[name]) for suffix in (".html", ".xhtml") for name in PAGES]
CASES += [(".pdf", name, IN_PDF[name]) for name in IN_PDF]


def written(path, make, size):
    text = make(size)
    if path.suffix == ".pdf":
        text = text if text.startswith("BT") else f"BT /F 12 Tf 9 9 Td (x) Tj {text.removeprefix('<p>x')}"
        path.write_bytes(page_of(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")


def check(path, make, size, seconds=seconds):
    written(path.with_stem("first"), make, 1_000)
    seconds(path.with_stem("first"))  # imports
    small = large = float("inf")
    for _ in range(4):  # the shortest of several: caches are shared with others
        written(path, make, size)
        small = min(small, max(seconds(path), 0.02))
        written(path, make, 4 * size)
        large = min(large, seconds(path))
        if large <= 8 * small:  # half way from four times, which is linear, to sixteen, which is quadratic
            return
    pytest.fail(f"{large:.2f} s for four times as much as {small:.2f} s are for")


@pytest.mark.parametrize(("suffix", "make"), [(s, m) for s, _, m in CASES], ids=[f"{n}{s}" for s, n, _ in CASES])
def test_four_times_as_much_of_little(tmp_path, suffix, make):
    check(tmp_path / f"a{suffix}", make, 64_000 if suffix != ".pdf" else 16_000)


@pytest.mark.long
@pytest.mark.parametrize(("suffix", "make"), [(s, m) for s, _, m in CASES], ids=[f"{n}{s}" for s, n, _ in CASES])
def test_four_times_as_much(tmp_path, suffix, make):
    # pypdf puts the text of a page together piece by piece: beyond a million pieces that shows in its time.
    size = 1_000_000 if suffix != ".pdf" else 250_000
    # As the server and `longspan read` run it: memory of a process that did much else grows by copies.
    with ProcessPoolExecutor(1, get_context("spawn")) as own:
        check(tmp_path / f"a{suffix}", make, size, lambda path: own.submit(seconds, path).result())
