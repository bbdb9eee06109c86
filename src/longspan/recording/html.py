"""The shell of a self-contained HTML page: it loads nothing from other addresses, and all text in it is escaped."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def page(package: str, title: str, body: str, data: Any) -> str:
    """A page with the style and the script ``page.css`` and ``page.js`` of a package.

    Args:
        title: a text, not yet escaped. body: HTML. data: for the script, as JSON.
    """
    assets = files(package)
    return _PAGE.format(
        title=text(title),
        body=body,
        # Only its end tag, which begins with "<", ends a script element.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        style=(assets / "page.css").read_text(encoding="utf-8"),
        script=(assets / "page.js").read_text(encoding="utf-8"),
    )


def text(value: str) -> str:
    """Escape a text and replace the control characters that HTML does not allow."""
    return escape("".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in value))
