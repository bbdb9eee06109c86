"""PDF files that are small and unfold to much: each is read or refused within the limits, and the server goes on."""

from __future__ import annotations

import pytest

from longspan.errors import DocumentError
from longspan.text.extraction import Extractor
from support.pdf_files import page_of, pdf_of
from support.serving import chat

MIB = 2**20
TEXT = b"BT /F 12 Tf 9 9 Td (x) Tj ET"


def picture(side: int) -> bytes:
    size = b"/Type /XObject /Subtype /Image /Width %d /Height %d /BitsPerComponent 8 /ColorSpace /DeviceRGB" % (
        side,
        side,
    )
    resources = b"/Resources << /Font << /F 4 0 R >> /XObject << /I 6 0 R >> >> "
    return page_of(b"/I Do " + TEXT, of_page=resources, more=[b"<< %s /Length 1 >>\nstream\nx\nendstream" % size])


def tree(kids: bytes) -> bytes:
    return pdf_of(
        [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [%s] /Count 9 /Parent 2 0 R >>" % kids]
    )


def deep(levels: int) -> bytes:
    """A tree of pages in which each has two kids, and both are the next one."""
    nodes = [b"<< /Type /Pages /Kids [%d 0 R %d 0 R] /Count 2 >>" % (n + 3, n + 3) for n in range(levels)]
    page = b"<< /Type /Page /MediaBox [0 0 99 99] >>"
    return pdf_of([b"<< /Type /Catalog /Pages 2 0 R >>", *nodes, page])


def within(levels: int) -> bytes:
    """A form that draws the next one ten times."""
    resources = b"/Resources << /Font << /F 4 0 R >> /XObject << /I %d 0 R >> >> "
    form = b"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] %s/Length %d >>\nstream\n%s\nendstream"
    draws = b"/I Do " * 10
    forms = [form % (resources % (7 + n), len(draws), draws) for n in range(levels)]
    return page_of(draws + TEXT, of_page=resources % 6, more=[*forms, form % (b"", len(TEXT), TEXT)])


BOMBS = {
    "packed 1:1000": lambda: page_of(b"BT /F 12 Tf 9 9 Td " + b"(x) Tj " * 8_000_000 + b"ET", packed=True),
    "spaces 1:1000": lambda: page_of(TEXT + b" " * 500_000_000, packed=True),
    "a loop of pages": lambda: tree(b"2 0 R"),
    "many loops of pages": lambda: tree(b"2 0 R " * 5_000),
    "pages twice at each level": lambda: deep(60),
    "a million objects": lambda: page_of(TEXT, more=[b"1"] * 1_000_000),
    "a picture": lambda: picture(100_000),
    "forms in forms": lambda: within(30),
    "a form in itself": lambda: within(30).replace(b"/I 36 0 R", b"/I 6 0 R"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BOMBS)
def test_each_is_read_or_refused(tmp_path, name):
    path = tmp_path / "a.pdf"
    path.write_bytes(BOMBS[name]())
    assert path.stat().st_size < 64 * MIB, "no server takes it"
    extractor = Extractor(seconds=20, memory=1024 * MIB, longest=MIB)
    try:
        text = extractor.text_of(path)
    except DocumentError as error:
        print(name, error)
        assert len(str(error)) < 400 and "\n" not in str(error)
    else:
        print(name, repr(text[:20]))
        assert set(text) <= set("x \n")
    finally:
        extractor.close()
    assert [one.name for one in tmp_path.iterdir()] == ["a.pdf"]


@pytest.mark.long
def test_the_server_answers_after_all_of_them(start):
    served = start(extract_seconds=5, extract_memory=512 * MIB)
    for name, bomb in BOMBS.items():
        response = served.http.post("/v1/documents", files={"file": ("x.pdf", bomb())})
        assert response.status_code in (202, 400), (name, response.text)
    assert served.http.post("/v1/chat/completions", json=chat("x", max_tokens=1)).status_code == 200
