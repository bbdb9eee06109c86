"""Compiles the C sources in ``src/`` with the system's compiler, once for each user."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired

from longspan import files
from longspan.kernels.cpu import failures, structs
from longspan.kernels.cpu.levels import FLAGS
from longspan.signals import deferred_signals

SOURCES = Path(__file__).parent / "src"
COMPILERS = ("cc", "gcc", "clang")
# On Arm none: of a processor with SVE gcc makes single numbers of the vectors, and nothing else changes (levels.py).
NATIVE = () if platform.machine() in ("aarch64", "arm64") else ("-march=native", "-mcpu=native")
_ASSEMBLER = "Assembler messages"  # how the messages of GNU as begin
SECONDS = 120  # more than a compiler takes on a slow machine
_NEEDED = 8 << 20  # bytes: several times the size of the library and a compiler's temporary files


class BuildError(Exception):
    """There is no library; the message is the reason."""


def compiler() -> tuple[str, ...]:
    """The command of ``CC`` if it is set, else the first of ``COMPILERS`` that is installed.

    Raises:
        BuildError: there is none, or none that is known to work.
    """
    if sys.platform == "win32":
        # gcc aligns the stack there to half of what these vectors need (its bug 54412), which ends the process.
        raise BuildError("there are no C kernels for Windows")
    named = shlex.split(os.environ.get("CC", ""))
    path = next(filter(None, map(shutil.which, named[:1] or COMPILERS)), None)
    if path is None:
        wanted = f"CC={' '.join(named)} is not there" if named else f"none of {', '.join(COMPILERS)} is there"
        raise BuildError(f"no C compiler was found ({wanted}); install one, such as gcc")
    return path, *named[1:]


@contextmanager
def library_for(cc: tuple[str, ...]) -> Iterator[Path]:
    """The compiled library, to load; compiled unless it is there, complete and the user's own.

    Its name is a hash of all that it depends on: the sources, the compiler, its flags and the processor. It is written
    under another name and moved, so that other processes see all of it or nothing; of two that need it at once, one
    waits for the other. If no folder is the user's alone, or has room, it is compiled for this process only.
    A failure is remembered beside where the library would be; see ``failures.py``.

    Raises:
        BuildError: it cannot be made.
    """
    name, folder = f"{library_name(cc)}.so", _folder()
    with ExitStack() as stack:
        if folder is None:
            yield _compiled(stack, None, name, cc)
        elif _ready(folder / name):
            yield folder / name
        else:
            with _alone(folder):
                path = folder / name if _ready(folder / name) else _compiled(stack, folder, name, cc)
            yield path


def _ready(library: Path) -> bool:
    return _only_ours(library) and whole(library)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; if the file system has no locks, several make the same file and the last one wins."""
    try:
        import fcntl

        opened = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _compiled(stack: ExitStack, folder: Path | None, name: str, cc: tuple[str, ...]) -> Path:
    """The compiled library; in the folder if possible, else in a temporary one that the stack removes."""
    note = None if folder is None else failures.Note((folder / name).with_suffix(".failed"), cc[0])
    if note is not None and (why := note.read()) is not None:
        raise BuildError(why)
    place, room = _room(folder)
    library = Path(stack.enter_context(room), name)  # once it is loaded, its file may go
    print("longspan: compiling kernels for this processor, once for each user (some seconds)", file=sys.stderr)
    try:
        compile_to(library, cc)
        if folder is None or place != folder:
            return library
        os.replace(library, folder / name)
        files.write(_seal(folder / name), _digest(folder / name))
    except OSError as error:
        raise BuildError(f"{cc[0]} or its output cannot be used: {error}") from error
    except BuildError as error:
        if note is not None:
            note.write(str(error), place)
        raise
    return folder / name


def _room(folder: Path | None) -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    """A new folder to compile in, and where it is: in the folder of libraries, or in that for temporary files.

    Raises:
        BuildError: neither can be written to and has room.
    """
    reasons = []
    for place in (folder, None):
        try:
            where = Path(tempfile.gettempdir()) if place is None else place
            free = free_bytes(where)
            if free >= _NEEDED:
                prefix = "longspan-" if place is None else "building-"
                return where, tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
            reasons.append(f"{free >> 20} MiB are free in {where}")
        except OSError as error:
            reasons.append(f"{place or 'there is no folder for temporary files'}: {error.strerror}")
    raise BuildError(f"no room to compile the kernels, which takes {_NEEDED >> 20} MiB: {', '.join(reasons)}")


def free_bytes(folder: Path) -> int:
    """Bytes that may be written to a folder."""
    return shutil.disk_usage(folder).free


def _folder() -> Path | None:
    """The folder of libraries, if it is there or can be made, and nobody else can put one there."""
    try:
        folder = files.cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter if there is no home
        return None
    return folder if _only_ours(folder) else None


def _only_ours(path: Path) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return stat.st_uid == os.geteuid() and not stat.st_mode & 0o022


def whole(library: Path) -> bool:
    """Whether a library is there and complete; loading a part of one can end the process."""
    try:
        return _seal(library).read_text() == _digest(library)
    except (OSError, UnicodeDecodeError):
        return False


def compile_to(target: Path, cc: tuple[str, ...]) -> None:
    """Compile the sources for this processor, or, if the compiler does not know it, for its kind.

    What the compiler writes meanwhile lies beside the target: the folder for temporary files may be full.

    Raises:
        BuildError: the compiler fails; the message is the first error that it names, or the first line.
    """
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    native = next((flag for flag in NATIVE if _knows(cc, flag)), None)
    for flags in ((native,), ()) if native else ((),):
        status, output = _run([*cc, *FLAGS, *_sizes(), *flags, "-o", str(target), *sources, "-lm"], target.parent)
        if status == 0:
            return
        # An assembler may be older than its compiler; nothing else that fails would not fail without the flag.
        if _ASSEMBLER not in output:
            break
    lines = output.strip().splitlines() or [f"exit status {status}"]
    first = next((line for line in lines if "error: " in line), lines[0])  # warnings may come before
    raise BuildError(f"{cc[0]} does not compile the kernels: {first}")


def _sizes() -> list[str]:
    """The sizes that Python packs, for ``layout.c``."""
    return [f"-DPACKED_{name}={one.size}" for name, one in structs.ALL.items()]


def _knows(cc: tuple[str, ...], flag: str) -> bool:
    """Whether the compiler takes a flag. It reads nothing and writes nothing, so only the flag can be wrong."""
    return _run([*cc, flag, "-fsyntax-only", "-x", "c", os.devnull])[0] == 0


def _run(command: Sequence[str], temporary: Path | None = None) -> tuple[int, str]:
    """Exit status and what was said. A command that takes too long is ended, with its children."""
    env = {**os.environ, "LC_ALL": "C"}  # so that what is said can be looked for
    if temporary is not None:
        env["TMPDIR"] = str(temporary)
    process = None
    try:
        with deferred_signals():  # a signal finds it begun and ends it, or not begun
            process = Popen(
                command, stdout=PIPE, stderr=STDOUT, text=True, errors="replace", start_new_session=True, env=env
            )
        said, _ = process.communicate(timeout=SECONDS)
    except OSError as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    except TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {SECONDS} s") from error
    finally:
        if process is not None and process.returncode is None:
            with process, suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


def _seal(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def library_name(cc: tuple[str, ...]) -> str:
    """The stem of the library's file: it changes with sources, flags, compiler and processor."""
    parts = [path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]"))]
    flags = " ".join((*FLAGS, *NATIVE, *_sizes()))
    parts += [" ".join(cc).encode(), version(cc).encode(), flags.encode(), processor().encode()]
    return "kernels-" + hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


@lru_cache(maxsize=8)
def version(cc: tuple[str, ...]) -> str:
    """The first line that the compiler says of itself.

    Raises:
        BuildError: it does not run.
    """
    return (_run([*cc, "--version"])[1].strip().splitlines() or [""])[0]


def processor() -> str:
    """The features of the processor, since machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    known = ("model name", "flags", "features", "cpu part", "cpu implementer")
    lines = [line for line in lines if line.lower().startswith(known)]
    return "\n".join([platform.system(), platform.machine(), platform.processor(), *lines])
