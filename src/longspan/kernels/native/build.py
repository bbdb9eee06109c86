"""Compiles the C sources beside this file with the system's compiler, once for each user."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

SOURCES = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
# What is stored is read as bytes, as whole numbers and as fp32, which strict aliasing would rule out.
_LOOSE = ("-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing")
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread", *_LOOSE)
NATIVE = ("-march=native", "-mcpu=native")  # the second is what some compilers for Arm know instead
_SECONDS = 120  # more than a compiler takes on a slow machine


class BuildError(Exception):
    """There is no library, and this is why."""


def cache_folder() -> Path:
    """Where what is compiled is kept: a folder of the user's own."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "longspan"


def compiler() -> tuple[str, ...]:
    """The command of ``CC`` if it is set, else the first of ``COMPILERS`` that is there.

    Raises:
        BuildError: there is none, or none that is known to work.
    """
    if sys.platform == "win32":
        # gcc there aligns the stack to half of what these vectors take (its bug 54412), and a process ends by that.
        raise BuildError("the kernels in C are not made for Windows")
    named = shlex.split(os.environ.get("CC", ""))
    found = next(filter(None, map(shutil.which, named[:1] or COMPILERS)), None)
    if found is None:
        wanted = f"CC={' '.join(named)} is not there" if named else f"none of {', '.join(COMPILERS)} is there"
        raise BuildError(f"no C compiler was found ({wanted}); install one, such as gcc")
    return found, *named[1:]


@contextmanager
def library_for(cc: tuple[str, ...]) -> Iterator[Path]:
    """The file of the compiled sources, to load; made unless it is there, whole and the user's own.

    It is named by all that it depends on: the sources, the compiler, its flags and the processor. It is made under
    another name and moved, so whoever looks meanwhile sees all of it or nothing; of two that make it at once the later
    one wins, with the same file. Where there is no folder that only the user writes to, it is made for this process.

    Raises:
        BuildError: it cannot be made.
    """
    name, folder = f"{_name(cc)}.so", _folder()
    if folder is not None and _own(folder / name) and whole(folder / name):
        yield folder / name
        return
    try:
        room = tempfile.TemporaryDirectory(prefix="building-", dir=folder, ignore_cleanup_errors=True)
    except OSError:  # a folder that cannot be written to
        folder, room = None, tempfile.TemporaryDirectory(prefix="longspan-", ignore_cleanup_errors=True)
    with room:
        made = Path(room.name, name)
        try:
            compile_to(made, cc)
            if folder is not None:
                seal = _seal(made)
                seal.write_text(_digest(made))
                os.replace(made, folder / name)
                os.replace(seal, _seal(folder / name))
                made = folder / name
        except OSError as error:
            raise BuildError(f"{cc[0]} or its output cannot be used: {error}") from error
        yield made  # once it is loaded, its file may go


def _folder() -> Path | None:
    """The folder of libraries, if it is there or can be made, and nobody else can put one there."""
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter where there is no home
        return None
    return folder if _own(folder) else None


def _own(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def whole(library: Path) -> bool:
    """Whether a library is there and as it was made; to load half a one can end the process."""
    try:
        return _seal(library).read_text() == _digest(library)
    except (OSError, UnicodeDecodeError):
        return False


def compile_to(target: Path, cc: tuple[str, ...]) -> None:
    """Compile the sources for this processor, or, where the compiler does not know it, for its kind."""
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    said = ""
    for flags in ((NATIVE[0],), (NATIVE[1],), ()):
        status, output = _run([*cc, *FLAGS, *flags, "-o", str(target), *sources, "-lm"])
        if status == 0:
            return
        said = said or (output.strip().splitlines() or [f"exit status {status}"])[0]
    raise BuildError(f"{cc[0]} does not compile the kernels: {said}")


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Exit status and what was said. What takes too long is ended, with all that it started."""
    try:
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=_SECONDS)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise BuildError(f"{command[0]} took more than {_SECONDS} s") from error
                raise
            return process.returncode, said
    except OSError as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error


def _seal(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _name(cc: tuple[str, ...]) -> str:
    parts = [path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]"))]
    parts += [" ".join(cc).encode(), version(cc).encode(), " ".join((*FLAGS, *NATIVE)).encode(), _processor().encode()]
    return "kernels-" + hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


@lru_cache(maxsize=8)
def version(cc: tuple[str, ...]) -> str:
    """The first line that the compiler says of itself.

    Raises:
        BuildError: it does not run.
    """
    return (_run([*cc, "--version"])[1].strip().splitlines() or [""])[0]


def _processor() -> str:
    """What decides which instructions there are; homes are shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    known = ("model name", "flags", "features", "cpu part", "cpu implementer")
    told = [line for line in lines if line.lower().startswith(known)]
    return "\n".join([platform.system(), platform.machine(), platform.processor(), *told])
