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
from longspan.install import pip_install

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
_MARKUP = r"<!--(?:-?>|.*?(?:--!?>|\Z))"
_MARKUP += r"|<(?P<end>/?)(?P<name>[a-z][^\s/>]*+)(?:=\s*+(?:\"[^\"]*+\"?|'[^']*+'?)|[^>])*+>?"
_TAG = re.compile(_MARKUP, re.I | re.S)
_TAG_OF_XML = re.compile(rf"<!\[CDATA\[(?P<marked>.*?)(?:\]\]>|\Z)|{_MARKUP}", re.I | re.S)
# What has no elements in it, whatever it looks like; of the others the text is never shown.
_RAW, _SHOWN = "iframe,noembed,noframes,script,style,textarea,title", {"textarea", "title"}
_RAW_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.I) for name in _RAW.split(",")}
_VOID = "area,base,br,col,embed,hr,img,input,link,meta,param,source,track,wbr"
_UNCLOSED = f"{_VOID},a,body,colgroup,dd,dt,head,html,li,option,p,rp,rt,tbody,td,tfoot,th,thead,tr"


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
        raise DocumentError(f"{path}: reading this file requires {package}: {pip_install('files')}")
    text = _of_pdf(path, data) if is_pdf else _of_html(path, data)
    if not text.strip():
        raise DocumentError(f"{path}: it contains no text; scanned pages need text recognition (OCR) first")
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

    html = _plain_tags(path, _decoded(path, data), in_xml=path.suffix.lower() == ".xhtml")
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


def _plain_tags(path: Path, html: str, *, in_xml: bool) -> str:
    """A page whose tags have no attributes, and no ``select``, which no text depends on and parsers take long for.

    A parser compares each attribute with all others of its tag, each option with all others of its list, and opens
    again at each paragraph all elements such as ``b`` that were not closed, if their attributes differ.

    Args:
        in_xml: an element may be closed in its first tag, and ``CDATA`` is text: to a parser of HTML it is a comment.

    Raises:
        DocumentError: so much is open at so many tags that the parser would take minutes: for many tags it looks
            through all elements that are open. How many are is estimated: elements whose end may be left out are not
            counted, and what never ends counts to the end.
    """
    most = max(_STEPS // max(html.count("<"), 1), _DEEP)
    blocks, void, unclosed = (set(names.split(",")) for names in (_BLOCKS, _VOID, _UNCLOSED))
    opened, depth = Counter[str](), 0
    parts, at, one = list[str](), 0, _TAG_OF_XML if in_xml else _TAG
    while tag := one.search(html, at):
        parts.append(html[at : tag.start()])
        at, found = tag.end(), tag.groupdict()
        if found["name"] is None:  # a comment, or in XML marked text
            parts.append(escape(found.get("marked") or ""))
            continue
        name, ended = found["name"].lower(), tag[0].endswith("/>")
        if name == "select":
            continue
        if found["end"]:
            parts.append(f"</{name}>")
        elif ended and name not in void and (in_xml or opened["svg"]):
            parts.append(f"<{name}></{name}>")
            continue
        elif name in _RAW_ENDS:
            end = _RAW_ENDS[name].search(html, at)
            stop = len(html) if end is None else end.start()
            parts.append(f"<{name}>" + (html[at:stop].replace("<", "&lt;") if name in _SHOWN else ""))
            at = stop
        else:
            parts.append(f"<{name}/>" if ended else f"<{name}>")
        # A parser ignores the slash of <div/>; in drawings, where it counts, there are no blocks.
        if name in unclosed or (ended and name not in blocks):
            continue
        step = 1 if not tag["end"] else -1 if opened[name] else 0
        opened[name] += step
        depth += step
        if depth > most:
            raise DocumentError(f"{path}: HTML with elements nested more than {most:,} deep")
    return "".join(parts) + html[at:]
