"""Which modules a process of its own loads."""

from __future__ import annotations

import subprocess
import sys


def loaded(code: str) -> set[str]:
    """The top-level modules that a process has loaded after this code."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit as stopped:\n    assert not stopped.code\n"
    script += "print('modules', *{name.partition('.')[0] for name in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    last = ran.stdout.splitlines()[-1].split()
    assert last[0] == "modules"
    return set(last[1:])
