"""A moving picture of commands, from a real run in a terminal: docs/assets/ask.svg, in README and on the front page.

longspan fetch smollm2 && head -n 1510 "$(longspan fetch hamlet)" > hamlet.txt
longspan read hamlet.txt --model smollm2
python docs/gen/cast.py docs/assets/ask.svg            # in the folder of hamlet.longspan

Every character is what the commands wrote. A wait of more than ``LONGEST`` seconds is shown as that long.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from textwrap import wrap

COMMANDS = ('longspan ask hamlet.longspan "Who is the king of Denmark?" --passages',)
COLUMNS = 88
KEY, LONGEST, REST = 0.045, 0.9, 0.7  # seconds: between two keys, the longest wait, before a command
SIZE, HIGH = 13, 18.5  # of the letters, and of a line
STYLE = f"""
.w{{fill:#151a38}}
text{{font:{SIZE}px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#dfe6f3;white-space:pre}}
.c{{fill:#fff;font-weight:600}}.p{{fill:#6bc3a2}}.d{{fill:#9fb0cc}}.t{{fill:#9fb0cc;font-size:11.5px}}
tspan,.s{{animation:s 1ms both;animation-delay:var(--t)}}@keyframes s{{from{{opacity:0}}to{{opacity:1}}}}
@media(prefers-reduced-motion:reduce){{tspan,.s{{animation:none}}}}
"""


@dataclass
class Line:
    """A line: its parts with the second at which each appears, and its class."""

    kind: str
    parts: list[tuple[float, str]] = field(default_factory=list)


def record(command: str) -> list[tuple[float, str]]:
    """What a command writes to a terminal, each piece with its second."""
    mine, its = pty.openpty()
    env = {**os.environ, "TERM": "dumb", "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    start, found = time.monotonic(), []
    with subprocess.Popen(command, shell=True, stdout=its, stderr=its, env=env) as process:
        os.close(its)
        while True:
            try:
                piece = os.read(mine, 4096)
            except OSError:  # the other end is closed
                break
            found.append((time.monotonic() - start, piece.decode()))
        if process.wait():
            sys.exit(f"cast: error: {command!r} ended with {process.returncode}: {''.join(text for _, text in found)}")
    return [(at, re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", text)) for at, text in found]


def lines_of(runs: dict[str, list[tuple[float, str]]]) -> tuple[list[Line], float]:
    """The lines of all runs in turn, wrapped, with waits shortened; and when the last one is there."""
    lines, now = [], REST
    for command, pieces in runs.items():
        typed = Line("c", [(now + KEY * n, letter) for n, letter in enumerate(command)])
        lines.append(typed)
        now, before = typed.parts[-1][0] + 0.2, 0.0
        shown: list[Line] = [Line("")]
        for at, text in pieces:
            now, before = now + min(at - before, LONGEST), at
            for part in re.split(r"(\n)", text):
                if part == "\n":
                    shown.append(Line(""))
                elif part:
                    shown[-1].parts.append((now, part))
        for line in shown[: -1 if not shown[-1].parts else None]:
            lines += wrapped(line)
        lines.append(Line(""))
        now += REST
    return lines[:-1], now


def wrapped(line: Line) -> list[Line]:
    """A line that is wider than the terminal, as several; one that streams in is never that wide."""
    text = "".join(part for _, part in line.parts)
    if len(text) <= COLUMNS:
        return [line]
    indent = text[: len(text) - len(text.lstrip())]
    rows = wrap(text, COLUMNS, subsequent_indent=indent, drop_whitespace=True)
    return [Line(line.kind, [(line.parts[0][0], row)]) for row in rows]


def draw(lines: list[Line]) -> str:
    """The lines as SVG: parts that appear at their second; all at once for those who want no motion."""
    wide, high = round(COLUMNS * SIZE * 0.604 + 36), round(HIGH * len(lines) + 58)
    rows = []
    for n, line in enumerate(lines):
        if not line.parts:
            continue
        y = round(56 + HIGH * n, 1)
        prompt = f'<tspan class="p" style="--t:{max(line.parts[0][0] - REST, 0):.2f}s">$ </tspan>' if line.kind else ""
        parts = "".join(f'<tspan style="--t:{at:.2f}s">{escape(text, quote=False)}</tspan>' for at, text in line.parts)
        kind = line.kind or ("d" if re.match(r"\d[\d.,]* (times|tokens)|what the answer", line.parts[0][1]) else "")
        rows.append(
            f'<text x="18" y="{y}"{f" class={kind!r}" if kind else ""} xml:space="preserve">{prompt}{parts}</text>'
        )
    title = "SmolLM2-135M, trained on 8,192 tokens; Hamlet, act I: 13,403"
    said = "A terminal in which longspan answers a question about Hamlet and shows the sentences behind the answer"
    dots = "".join(
        f'<circle cx="{20 + 16 * n}" cy="18" r="5" fill="{c}"/>'
        for n, c in enumerate(("#d0506e", "#f6b73c", "#6bc3a2"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" aria-label="{said}">'
        f"<title>{said}</title><style>{STYLE.strip()}</style>"
        f'<rect class="w" width="{wide}" height="{high}" rx="9"/>{dots}'
        f'<text class="t" x="{wide - 18}" y="22" text-anchor="end">{title}</text>'
        f"{''.join(rows)}</svg>\n"
    )


def main() -> int:
    lines, seconds = lines_of({command: record(command) for command in COMMANDS})
    Path(sys.argv[1]).write_text(draw(lines), encoding="utf-8")
    print(f"{sys.argv[1]}: {len(lines)} lines in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
