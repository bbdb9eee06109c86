"""The text of files: plain text, and PDF and HTML with the extra ``files``."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from longspan import files
from longspan.errors import DocumentError

_PDF, _HTML = {".pdf"}, {".html", ".htm", ".xhtml"}
_UNSEEN = ["head", "script", "style", "noscript", "template", "svg"]
_BLOCKS = "address,article,aside,blockquote,br,dd,div,dl,dt,figcaption,figure,footer,form,h1,h2,h3,h4,h5,h6,header,hr,"
_BLOCKS += "li,main,nav,ol,p,pre,section,table,tr,ul"


def is_plain(path: Path) -> bool:
    """Whether a file is read as it is, by its name."""
    return path.suffix.lower() not in _PDF | _HTML


def extract(path: Path) -> str:
    """The text of a PDF or HTML file.

    Raises:
        DocumentError: what reads it is not installed, or there is no text in it. OSError: it cannot be read.
    """
    data, is_pdf = files.read(path), path.suffix.lower() in _PDF
    package = "pypdf" if is_pdf else "selectolax"
    if find_spec(package) is None:
        raise DocumentError(f"{path}: it takes {package} to read this: pip install 'longspan[files]'")
    text = _of_pdf(path, data) if is_pdf else _of_html(data)
    if not text.strip():
        raise DocumentError(f"{path}: there is no text in it; pages that are pictures need a program that reads those")
    return text


def _of_pdf(path: Path, data: bytes) -> str:
    import pypdf

    with _defects("pypdf") as defects:
        try:
            pages = [page.extract_text() for page in pypdf.PdfReader(io.BytesIO(data)).pages]
        except Exception as error:  # of many kinds, for what a file may have wrong
            raise DocumentError(
                f"{path}: not a PDF file that can be read ({' '.join(str(error).split())[:200]})"
            ) from error
    if defects:
        first = " ".join(defects[0].split())[:200]
        warnings.warn(f"{path}: {len(defects)} defects of this PDF file, so text may be missing: {first}", stacklevel=4)
    return "\n\n".join(page.strip() for page in pages if page.strip())


@contextmanager
def _defects(name: str) -> Iterator[list[str]]:
    """What a library logs in this block, instead of on stderr."""
    found: list[str] = []
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger(name)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _of_html(data: bytes) -> str:
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(data)
    tree.strip_tags(_UNSEEN)
    for block in tree.css(_BLOCKS):  # a line ends where a block does, and nowhere within one
        block.insert_before("\u2028")
        block.insert_after("\u2028")
    text = tree.body.text() if tree.body is not None else ""
    lines = (" ".join(line.split()) for line in re.split("\u2028", text))
    return "\n".join(line for line in lines if line)
