"""MkDocs' hooks: fill in what is made, link to sources, and refuse what is undocumented or fetched from elsewhere."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

import commands
import made
import reference
import sources

_FETCHED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="https?:[^"]*"|<link\b[^>]*\brel="stylesheet"[^>]*\bhref="https?:[^"]*"'
)
_IN_CELL = re.compile(r"(?<=<td><code>)[^<]+(?=</code>)")
_EMPTY = re.compile(r"<th((?: [^>]*)?)></th>")
_HEADLESS = re.compile(r"<thead>\s*<tr>(?:\s*<th(?: [^>]*)?></th>)+\s*</tr>\s*</thead>")
_UNNAMED = '<div class="md-search" data-md-component="search" role="dialog"'  # the theme gives this dialog no name


def on_config(config: Any) -> None:
    _part(config.nav, "API reference").append({"For authors of methods": list(reference.pages())})
    _part(config.nav, "Command line").extend(commands.pages())
    if wrong := reference.undocumented():
        raise PluginError("\n".join(wrong))


def on_files(files: Files, config: Any) -> Files:
    for path, text in (reference.pages() | commands.pages()).items():
        files.append(File.generated(config, path, content=text))
    shown = {
        file
        for page in list(files.documentation_pages())
        for file in sources.pictures(page.content_string, page.src_uri).values()
    }
    for file in sorted(shown):
        files.append(File.generated(config, _inside(file), abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    try:
        markdown = sources.resolve(made.fill(markdown), page.file.src_uri)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
    for link, file in sources.pictures(markdown, page.file.src_uri).items():
        to = posixpath.relpath(_inside(file), posixpath.dirname(page.file.src_uri) or ".")
        markdown = markdown.replace(f"]({link})", f"]({to})")
    return markdown


def on_post_page(output: str, page: Any, config: Any) -> str:
    if fetched := _FETCHED.findall(output):
        raise PluginError(f"{page.file.src_uri} would fetch {fetched[0]}")
    return output.replace(_UNNAMED, f'{_UNNAMED} aria-label="Search"')


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """No empty heading of a table; and a long name in one may break after a comma, a colon or an equals sign."""
    html = _EMPTY.sub(r"<td\1></td>", _HEADLESS.sub("", html))
    return _IN_CELL.sub(lambda code: re.sub(r"([,:=/])(?=\w)", r"\1<wbr>", code[0]), html)


def _part(nav: list[Any], name: str) -> list[Any]:
    """The pages of a part of the navigation, at whatever depth."""
    for one in nav:
        for title, inside in one.items() if isinstance(one, dict) else ():
            if title == name:
                return inside
            if isinstance(inside, list) and (found := _part(inside, name)):
                return found
    return []


def _inside(file: Path) -> str:
    """Where a picture of the repository lies in the site."""
    return f"assets/{file.relative_to(sources.ROOT).as_posix()}"
