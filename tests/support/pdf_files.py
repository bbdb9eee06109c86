"""PDF files, as small as they can be, whose parts are what a test wants."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

_FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def pdf_of(parts: Sequence[bytes]) -> bytes:
    """A file of these objects, numbered from 1, the first of which is its catalog."""
    pieces, places, at = [b"%PDF-1.4\n"], list[int](), 9
    for number, part in enumerate(parts, 1):
        places.append(at)
        pieces.append(b"%d 0 obj\n%s\nendobj\n" % (number, part))
        at += len(pieces[-1])
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return b"".join(pieces) + end % (len(parts) + 1, table, len(parts) + 1, at)


def page_of(
    content: bytes, *, pages: int = 1, packed: bool = False, of_page: bytes = b"", more: Sequence[bytes] = ()
) -> bytes:
    """A file of some pages of one content, with the font /F; object 5 is the first page, those after the last ``more``.

    Args:
        packed: whether the content is compressed. of_page: entries of each page.
    """
    stream, kind = (zlib.compress(content, 9), b"/Filter /FlateDecode ") if packed else (content, b"")
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] /Contents 3 0 R %s" % of_page
    page += b"/Resources << /Font << /F 4 0 R >> >> >>" if b"/Resources" not in of_page else b">>"
    kids = b" ".join(b"%d 0 R" % (5 + n) for n in range(pages))
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, pages),
        b"<< /Length %d %s>>\nstream\n%s\nendstream" % (len(stream), kind, stream),
        _FONT,
        *[page] * pages,
    ]
    return pdf_of([*parts, *more])
