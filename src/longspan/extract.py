"""The text of files: plain text, and PDF and HTML with the extra ``files``."""

from __future__ import annotations

import codecs
import io
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from pathlib import Path

from longspan import files
from longspan.errors import DocumentError

_PDF, _HTML = {".pdf"}, {".html", ".htm", ".xhtml"}
_UNSEEN = ["head", "script", "style", "noscript", "template", "svg"]
_BLOCKS = "address,article,aside,blockquote,br,caption,center,dd,details,dialog,div,dl,dt,fieldset,figcaption,figure,"
_BLOCKS += "footer,form,h1,h2,h3,h4,h5,h6,header,hgroup,hr,legend,li,main,menu,nav,ol,optgroup,option,p,pre,search,"
_BLOCKS += "section,summary,table,tr,ul"
_CELLS = "button,label,td,th"

# The mark of UTF-32 begins with that of UTF-16.
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be"}
_MARKS |= {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_MARKS |= {b"<\0": "utf-16-le", b"\0<": "utf-16-be"}  # without a mark, as XML has it
_NAMED = re.compile(rb"<(?:meta\b[^>]*?\bcharset|\?xml\b[^>]*?\bencoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.I)
# Pages that name the first are written in the second, which has all its letters, and browsers read them so.
_MEANT = {"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030"}
_MEANT |= {"shift_jis": "cp932", "euc_kr": "cp949"}
_MEANT |= dict.fromkeys(["utf-16", "utf-16-le", "utf-16-be"], "utf-8")  # in UTF-16 the name could not have been found
_NO_TEXT = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"}  # Python's, no page's

# How often a parser may look at an element in all, which takes some seconds; and the depth that any page may have.
_STEPS, _DEEP = 10**9, 1_000
_TAG = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(?P<raw>iframe|noembed|noframes|script|style|textarea|title|xmp)\b.*?(?:</(?P=raw)|\Z)"
    r"|<(?P<end>/?)(?P<name>[a-z][^\s/>]*+)(?:=\s*+(?:\"[^\"]*+\"?|'[^']*+'?)|[^>])*+>?",
    re.I | re.S,
)
# In XML these are empty; to a parser of HTML they are open, and swallow what comes after them.
_EMPTY = re.compile(
    r"<(iframe|noembed|noframes|noscript|script|style|template|textarea|title|xmp)\b"
    r"((?:[^<>\"'/]++|\"[^<\"]*+\"|'[^<']*+'|/(?!>))*+)/>"
)
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.S)  # a comment to a parser of HTML
_UNCLOSED = "a,area,base,body,br,col,colgroup,dd,dt,embed,head,hr,html,img,input,li,link,meta,option,p,param,rp,rt,"
_UNCLOSED += "source,tbody,td,tfoot,th,thead,tr,track,wbr"


def is_plain(path: Path) -> bool:
    """Whether a file is read as it is, by its name."""
    return path.suffix.lower() not in _PDF | _HTML


def extract(path: Path) -> str:
    """The text of a PDF or HTML file.

    Raises:
        DocumentError: its reader is not installed, or there is no text in it. OSError: it cannot be read.
    """
    data, is_pdf = files.read(path), path.suffix.lower() in _PDF
    package = "pypdf" if is_pdf else "selectolax"
    if find_spec(package) is None:
        raise DocumentError(f"{path}: it takes {package} to read this: pip install 'longspan[files]'")
    text = _of_pdf(path, data) if is_pdf else _of_html(path, data)
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
    """A library's log messages in this block, kept off stderr."""
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


def _of_html(path: Path, data: bytes) -> str:
    from selectolax.lexbor import LexborHTMLParser

    html = _decoded(path, data)
    if path.suffix.lower() == ".xhtml":
        html = _EMPTY.sub(r"<\1\2></\1>", _CDATA.sub(lambda part: escape(part[1]), html))
    _check_depth(path, html)
    tree = LexborHTMLParser(html)
    tree.strip_tags(_UNSEEN)
    for names, between in ((_BLOCKS, "\u2028"), (_CELLS, " ")):
        for node in tree.css(names):  # a line ends where a block does, and nowhere within one
            node.insert_before(between)
            node.insert_after(between)
    text = tree.body.text() if tree.body is not None else ""
    lines = (" ".join(line.split()) for line in re.split("\u2028", text))
    return "\n".join(line for line in lines if line)


def _decoded(path: Path, data: bytes) -> str:
    """A page in the encoding that its first bytes name, else in UTF-8."""
    marked = next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)
    named = _NAMED.search(re.sub(rb"<!--.*?(?:-->|\Z)", b"", data[:1024], flags=re.S))
    encoding = marked or (named[1].decode() if named else "utf-8")
    try:
        codec = codecs.lookup(encoding).name
        if codec in _NO_TEXT:
            raise LookupError(codec)
        return data.decode(marked or _MEANT.get(codec, codec)).removeprefix("\ufeff")
    except LookupError as error:
        raise DocumentError(f"{path}: HTML in an unknown encoding, {encoding!r}") from error
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: not HTML in {encoding} ({error.reason} at byte {error.start})") from error


def _check_depth(path: Path, html: str) -> None:
    """Raise ``DocumentError`` where so much is open at so many tags that the parser would take minutes.

    For many tags it looks through all elements that are open. How many are is estimated: elements whose end may be left
    out are not counted, and what never ends counts to the end.
    """
    tags = html.count("<")
    most = max(_STEPS // max(tags, 1), _DEEP)
    if tags <= most:
        return
    blocks, unclosed = set(_BLOCKS.split(",")), set(_UNCLOSED.split(","))
    opened, depth = Counter[str](), 0
    for tag in _TAG.finditer(html):
        name = (tag["name"] or "").lower()
        # A parser ignores the slash of <div/>; in drawings, where it counts, there are no blocks.
        if not name or name in unclosed or (tag[0].endswith("/>") and name not in blocks):
            continue
        step = 1 if not tag["end"] else -1 if opened[name] else 0
        opened[name] += step
        depth += step
        if depth > most:
            raise DocumentError(f"{path}: HTML whose elements lie more than {most:,} deep in one another")
