"""HTML files: their encodings, what stands apart in their text, and how deep their elements may lie in one another."""

from __future__ import annotations

import pytest

from longspan.errors import DocumentError
from longspan.text.extract import extract

pytest.importorskip("selectolax")


@pytest.fixture
def text_of(tmp_path):
    def text_of(page: str | bytes) -> str:
        path = tmp_path / "a.html"
        path.write_bytes(page.encode() if isinstance(page, str) else page)
        return extract(path)

    return text_of


@pytest.mark.parametrize(
    ("head", "encoding", "text"),
    [
        ("", "utf-8", "naïve"),
        ("", "utf-8-sig", "naïve"),
        ('<meta charset="latin-1">', "utf-8-sig", "naïve"),  # the mark is believed
        ('<?xml version="1.0" encoding="utf-16"?>', "utf-16", "naïve 東"),
        ("", "utf-16-le", "naïve 東"),
        ("", "utf-16-be", "naïve 東"),
        ('<META Charset = "windows-1251">', "cp1251", "Привет"),
        ("<meta http-equiv='Content-Type' content='text/html; charset=Shift_JIS'>", "cp932", "東京①"),
        ("<?xml version='1.0' encoding='koi8-r'?>", "koi8-r", "Привет"),
        ("<meta charset=iso-8859-1>", "cp1252", "“naïve”"),
        ("<meta charset=gb2312>", "gbk", "朱镕基"),
        ("<meta charset=utf-16>", "utf-8", "naïve"),
        ("<!-- <meta charset=koi8-r> --><meta charset=cp1251>", "cp1251", "Привет"),
        ("<script charset=koi8-r></script>", "utf-8", "naïve"),
    ],
)
def test_encodings(text_of, head, encoding, text):
    assert text_of(f"{head}<p>{text}</p>".encode(encoding)) == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_marks_of_utf_16_and_32(text_of, encoding):
    assert text_of("\ufeff<p>naïve".encode(encoding)) == "naïve"


@pytest.mark.parametrize("empty", ["<title/>", '<script src="a/b>c.js" />', "<style id='x'/>", "<textarea name=a/b/>"])
def test_an_empty_element_of_xhtml_swallows_nothing(tmp_path, empty):
    path = tmp_path / "a.xhtml"
    path.write_text(
        f"<html><head></head><body><p>one</p>{empty}<p>two</p><script>no</script><p>three</p></body></html>"
    )
    assert extract(path) == "one\ntwo\nthree"


def test_what_xhtml_has_marked_as_text(tmp_path):
    path = tmp_path / "a.xhtml"
    path.write_text("<html><body><p>if <![CDATA[a < b &&\n b > c]]> then</p><style><![CDATA[p]]></style></body></html>")
    assert extract(path) == "if a < b && b > c then"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (b"<p>na\xefve", r"a\.html: not HTML in utf-8 \(.* at byte 5\)"),
        (b"\xef\xbb\xbf<p>\xff", r"utf-8 .*at byte 6"),
        (b"\xff\xfe<\0p\0>\0x", r"utf-16-le .*at byte 8"),
        (b"<meta charset=ascii><p>\x81", r"ascii .*at byte 23"),
        (b"<meta charset=klingon><p>x", "unknown encoding, 'klingon'"),
        (b"<meta charset=base64><p>x", "unknown encoding, 'base64'"),
        (b"<meta charset=unicode_escape><p>\\ud800", "unknown encoding, 'unicode_escape'"),
        (b" " * 1024 + b"<meta charset=latin-1><p>\xef", r"utf-8 .*at byte 1049"),
    ],
)
def test_what_cannot_be_decoded(text_of, page, words):
    with pytest.raises(DocumentError, match=words):
        text_of(page)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<table><tr><th>a<th>b</tr><tr><td>12</td><td>34</td></tr></table>", "a b\n12 34"),
        ("<table><caption>One</caption><tr><td>1</td></tr></table>", "One\n1"),
        ("<select><option>one</option><option>two</option></select>", "one\ntwo"),
        ("<details><summary>One</summary>two</details>", "One\ntwo"),
        ("<fieldset><legend>One</legend>two</fieldset>", "One\ntwo"),
        ("<label>One</label><button>two</button><button>three</button>", "One two three"),
        ("<p>o<b>n</b>e<i>t</i>w<a href=x>o</a>th<span>ree</span>", "onetwothree"),
    ],
)
def test_what_stands_apart(text_of, page, text):
    assert text_of(page) == text


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 200_000 + "x" + "</div>" * 200_000,
        "<DIV title='</div>'>" * 200_000 + "x",
        "<div/>" * 200_000 + "x",
        "<ul><li>" * 200_000 + "x",
        "<span>" * 200_000 + "</nothing>" * 200_000 + "x",
    ],
    ids=["ended", "attribute", "slash", "lists", "unknown"],
)
def test_elements_that_lie_too_deep(text_of, page):
    with pytest.raises(DocumentError, match=r"elements nested more than [\d,]+ deep"):
        text_of(page)


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 10_000 + "x" + "</div>" * 10_000,
        "x" + "<p><br><a name=y>" * 50_000,
        "x<table>" + "<tr><td>" * 50_000,
        "x<svg>" + "<path d='m0 0'/>" * 50_000 + "</svg>",
        "x<script>" + "i<n;" * 50_000 + "</script>",
        "x<!--" + "<div>" * 50_000 + "-->",
    ],
    ids=["deep", "unended", "cells", "drawing", "script", "comment"],
)
def test_elements_that_do_not(text_of, page):
    assert text_of(page) == "x"
