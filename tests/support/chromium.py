"""Where Chromium is; run as a script, it says so or how to get one."""

from __future__ import annotations

import os
import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str:
    """The program that $LONGSPAN_CHROMIUM names, else the first of its names on the path.

    Raises:
        FileNotFoundError: there is none.
    """
    named = os.environ.get("LONGSPAN_CHROMIUM")
    if named and not os.access(named, os.X_OK):
        raise FileNotFoundError(f"$LONGSPAN_CHROMIUM is {named}, which is no program; name another, or none")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        raise FileNotFoundError("no Chromium: apt-get install chromium, or set LONGSPAN_CHROMIUM=/path/to/chrome")
    return found


if __name__ == "__main__":
    try:
        print(find())
    except FileNotFoundError as error:
        sys.exit(str(error))
