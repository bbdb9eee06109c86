"""Compiling the kernels where the disk is full, and what is remembered of a failure."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import namedtuple

import pytest

import longspan
from longspan.kernels import cpu
from longspan.kernels.cpu import build, failures
from support.hf_models import make

pytestmark = pytest.mark.hostile

try:
    build.compiler()
except build.BuildError as error:
    pytest.skip(str(error), allow_module_level=True)

Usage = namedtuple("Usage", "total used free")
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo mine 1.0 && exit
case "$*" in *fsyntax-only*) exit {known};; esac
echo x >> {calls}
echo "{says}" >&2
exit 1
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "longspan"


@pytest.fixture
def unbuilt():
    cpu.forget()
    yield
    cpu.forget()


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A compiler that knows every flag, or none, and fails; and how often it was asked to compile."""
    calls = tmp_path / "calls"
    calls.touch()

    def made(says, known=True):
        cc = tmp_path / "cc"
        cc.write_text(COMPILER.format(calls=calls, says=says, known=0 if known else 1))
        cc.chmod(0o755)
        build.version.cache_clear()
        return (str(cc),)

    return made, lambda: len(calls.read_text().split())


def why(cc):
    with pytest.raises(build.BuildError) as told, build.library_for(cc):
        pass
    return str(told.value)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("says", ["No space left on device", "internal error"])
def test_it_is_compiled_once_and_the_failure_remembered(cache, broken, says, known):
    make_one, calls = broken
    cc = make_one(says, known)
    assert says in why(cc) and calls() == 1
    again = why(cc)
    assert says in again and ".failed to try again" in again and calls() == 1


def test_an_assembler_that_is_older_than_its_compiler_gets_the_plain_kind(cache, broken):
    make_one, calls = broken
    why(make_one("x.s: Assembler messages: no such instruction"))
    assert calls() == 2


def test_a_failure_is_forgotten_with_its_cause(cache, broken, monkeypatch):
    make_one, calls = broken
    cc = make_one("No space left on device")
    usage = shutil.disk_usage(cache.parent.parent)
    why(cc), why(cc)
    assert calls() == 1
    monkeypatch.setattr(failures.shutil, "disk_usage", lambda path: Usage(0, 0, usage.free + (64 << 20)))
    why(cc)
    assert calls() == 2  # there is more room
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    why(cc), why(cc)
    assert calls() == 2
    cc = make_one("No space left on device, it says now")
    why(cc)
    assert calls() == 3  # another compiler of the same version
    tomorrow = time.time() + failures.HOLDS + 1
    monkeypatch.setattr(failures.time, "time", lambda: tomorrow)
    why(cc)
    assert calls() == 4  # a day later
    next(cache.glob("*.failed")).unlink()
    why(cc)
    assert calls() == 5


def test_what_is_no_note_is_no_reason(cache, broken):
    make_one, _calls = broken
    cc = make_one("internal error")
    why(cc)
    for harm in ("", "[" * 9, "{}", '{"why": 3, "time": "x"}', "[1]"):
        next(cache.glob("*.failed")).write_text(harm)
        assert "try again" not in why(cc)


def test_where_there_is_no_room_nothing_is_compiled(cache, broken, monkeypatch):
    make_one, calls = broken
    monkeypatch.setattr(build, "free_bytes", lambda folder: 1 << 20)
    assert "no room to compile the kernels, which takes 8 MiB: 1 MiB are free in" in why(make_one("unheard"))
    assert calls() == 0 and not list(cache.glob("*.failed"))


@pytest.mark.long
def test_a_full_cache_is_left_aside(cache, monkeypatch):
    monkeypatch.setattr(build, "FLAGS", ("-std=gnu11", "-fPIC", "-shared"))
    monkeypatch.setattr(build, "NATIVE", ())
    monkeypatch.setattr(build, "free_bytes", lambda folder: 0 if folder == cache else 1 << 30)
    with build.library_for(build.compiler()) as library:
        assert cache not in library.parents
    assert not library.exists()


def test_a_full_folder_for_temporary_files_is_not_used(cache, tmp_path, monkeypatch, capfd):
    """What a compiler writes meanwhile lies beside the library."""
    seen = tmp_path / "seen"
    cc = tmp_path / "cc"
    cc.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo mine 1.0 && exit\necho "$TMPDIR" >> {seen}\n'
        f'exec {build.compiler()[0]} "$@"\n'
    )
    cc.chmod(0o755)
    monkeypatch.setattr(build, "FLAGS", ("-std=gnu11", "-fPIC", "-shared"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
    with build.library_for((str(cc),)) as library:
        assert library.parent == cache
    assert seen.read_text().split()[-1].startswith(str(cache / "building-"))
    told = capfd.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and "compiling kernels" in told.err
    with build.library_for((str(cc),)):
        pass
    assert capfd.readouterr().err == ""  # only where it is compiled


def test_the_report_says_so(cache, broken, unbuilt, monkeypatch):
    make_one, calls = broken
    monkeypatch.setenv("CC", make_one("cannot write: No space left on device")[0])
    report = longspan.extend(make("llama"), "longheads")
    assert "torch operations" in report.kernels
    assert any("No space left on device" in note for note in report.warnings) and calls() == 1


@pytest.mark.long
def test_two_that_need_it_at_once_compile_it_once(cache, tmp_path):
    """The second waits for the first, and finds it."""
    calls = tmp_path / "calls"
    cc = tmp_path / "cc"
    real = build.compiler()[0]
    cc.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) echo x >> {calls}; sleep 1;; esac\nexec {real} "$@"\n')
    cc.chmod(0o755)
    code = (
        "from longspan.kernels.cpu import build\n"
        "build.FLAGS = ('-std=gnu11', '-fPIC', '-shared')\n"
        f"with build.library_for(({str(cc)!r},)) as library: print(library)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    names = {process.communicate(timeout=120)[0] for process in both}
    assert len(names) == 1 and calls.read_text().split() == ["x"]
