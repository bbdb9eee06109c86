"""Builds the platform wheel: with ``LONGSPAN_WHEEL=platform`` a wheel carries the C kernels, compiled for each level.

Without it the wheel is pure, and longspan compiles its kernels at first use.
"""

from __future__ import annotations

import os
import platform
import runpy
import shlex
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CPU = Path(__file__).parent / "src" / "longspan" / "kernels" / "cpu"
ASKS = "LONGSPAN_WHEEL"
MACOS = "11.0"  # the first release on Apple silicon


class PlatformWheel(BuildHookInterface):
    """What hatchling calls before and after a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        asked = os.environ.get(ASKS, "")
        if asked not in ("", "pure", "platform"):
            raise SystemExit(f"{ASKS} is pure or platform, not {asked!r}")
        if asked != "platform" or version == "editable":
            return
        known, machine = runpy.run_path(str(CPU / "levels.py")), platform.machine()
        if os.name != "posix" or machine not in known["LEVELS"]:
            raise SystemExit(f"there is no platform wheel for {platform.system()} on {machine}; unset {ASKS}")
        self.folder = tempfile.TemporaryDirectory()
        sizes = [f"-DPACKED_{name}={x.size}" for name, x in runpy.run_path(str(CPU / "structs.py"))["ALL"].items()]
        macos = [f"-mmacosx-version-min={MACOS}"] if platform.system() == "Darwin" else []

        def compiled(level: Any) -> Path:
            library = Path(self.folder.name, level.file.name)
            cc = shlex.split(os.environ.get("CC", "cc"))
            sources = sorted(map(str, CPU.glob("src/*.c")))
            flags = [*known["FLAGS"], "-Wno-psabi", *sizes, *macos, *level.flags]
            try:
                subprocess.run([*cc, *flags, "-o", str(library), *sources, "-lm"], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                said = f"{cc[0]} does not compile {level.name}, {error}; take a later compiler: CC=gcc-12"
                raise SystemExit(said) from error
            return library

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            libraries = list(pool.map(compiled, known["LEVELS"][machine]))
        into = known["BUILT"].relative_to(Path(__file__).parent / "src")
        build_data["force_include"] |= {str(library): str(into / library.name) for library in libraries}
        system = f"macosx-{MACOS}-{machine}" if macos else sysconfig.get_platform()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{system.replace('-', '_').replace('.', '_')}"

    def finalize(self, *_: Any) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()
