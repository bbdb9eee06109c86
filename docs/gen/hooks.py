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

import made
import reference
import sources

_FETCHED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="https?:[^"]*"|<link\b[^>]*\brel="stylesheet"[^>]*\bhref="https?:[^"]*"'
)


def on_config(config: Any) -> None:
    config.nav[-1]["API reference"] += list(reference.pages())
    if wrong := reference.undocumented():
        raise PluginError("\n".join(wrong))


def on_files(files: Files, config: Any) -> Files:
    for path, text in reference.pages().items():
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
    return output


def _inside(file: Path) -> str:
    """Where a picture of the repository lies in the site."""
    return f"assets/{file.relative_to(sources.ROOT).as_posix()}"
