"""Files are whole or not at all, and all of them are written in one place."""

from __future__ import annotations

import ast
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import longspan
from longspan import files

pytestmark = pytest.mark.hostile

ROOT = Path(longspan.__file__).parent
WRITERS = {"write_text", "write_bytes", "savefig", "save_file", "touch", "mkstemp", "NamedTemporaryFile"}
# An upload, and its text on the way out of the process that extracts it: both are removed when the text is taken.
EXEMPT = {
    "serve/documents/library.py": {"NamedTemporaryFile", "open"},
    "text/extraction.py": {"write_bytes", "write_text"},
}


def writing(path):
    """The calls in a file that write one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = 1 if isinstance(node.func, ast.Name) else 0
        modes = [one.value for one in node.keywords if one.arg == "mode"] + node.args[first : first + 1]
        mode = next((one.value for one in modes if isinstance(one, ast.Constant) and isinstance(one.value, str)), "r")
        if name in WRITERS or (name == "open" and set(mode) & set("wax+")):
            yield name


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_written_in_one_place(path):
    own = str(path.relative_to(ROOT))
    if own != "files.py":
        assert set(writing(path)) <= EXEMPT.get(own, set())


def test_the_search_finds_calls(tmp_path):
    source = "open('a', 'w')\nopen('a', mode='ab')\np.open('x')\np.write_text('')\nf.savefig(p)\nopen('r')\np.open()\n"
    (tmp_path / "a.py").write_text(source)
    assert sorted(writing(tmp_path / "a.py")) == ["open", "open", "open", "savefig", "write_text"]


def fails(number):
    def one(*args, **given):
        raise OSError(number, os.strerror(number))

    return one


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open"])
def test_what_was_there_stays(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(files.os, call, fails(errno.ENOSPC))
        with pytest.raises(OSError) as told:
            files.write(path, "new")
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_text() == "old" and [one.name for one in tmp_path.iterdir()] == ["file"]
    files.write(path, "new")
    assert path.read_text() == "new" and [one.name for one in tmp_path.iterdir()] == ["file"]


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write(tmp_path / "file", "new")
    assert not list(tmp_path.iterdir())


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    fsync, move = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda file: done.append("fsync") or fsync(file))
    monkeypatch.setattr(files.os, "replace", lambda *names: done.append("replace") or move(*names))
    files.write(tmp_path / "file", b"new")
    assert done == ["fsync", "replace", "fsync"]  # the folder's as well


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions(tmp_path, mask):
    before = os.umask(mask)
    try:
        files.write(tmp_path / "new", "text")
        files.write(tmp_path / "shared", "text")
        (tmp_path / "shared").chmod(0o664)
        files.write(tmp_path / "shared", "more")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"new": 0o666 & ~mask, "shared": 0o664}


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(tmp_path, there):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "file", tmp_path / "link"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    files.write(link, "new")
    assert link.is_symlink() and target.read_text() == "new" and len(list((tmp_path / "far").iterdir())) == 1


def test_the_longest_name_there_can_be(tmp_path):
    files.write(tmp_path / ("x" * 255), "text")


def test_what_is_no_file_is_written_as_it_is(tmp_path):
    files.write("/dev/null", "text")
    with pytest.raises(OSError, match="No space left on device.*/dev/full"):
        files.write("/dev/full", "text")
    read, write = os.pipe()
    files.write(f"/dev/fd/{write}", "text")
    assert os.read(read, 9) == b"text"
    os.close(read), os.close(write)


@pytest.mark.parametrize("call", [files.check, lambda path: files.write(path, "text")])
@pytest.mark.parametrize("path", ["folder", "nowhere/file", "file/below", "loop", "x" * 300, "nul\0"])
def test_places_that_cannot_be(tmp_path, monkeypatch, path, call):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir(), Path("file").touch(), Path("loop").symlink_to("loop")
    with pytest.raises(OSError) as told:
        call(path)
    assert told.value.filename == path and told.value.strerror
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder", "loop"]


def test_to_check_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.check(path)
    assert not list(tmp_path.iterdir())
    path.write_text("old")
    files.check(path)
    assert path.read_text() == "old"
    monkeypatch.setattr(files.os, "write", fails(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        files.check(path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_bytes_that_are_no_text_are_spelt_out(tmp_path):
    files.write(tmp_path / "file", "data in /a\udcff")
    assert (tmp_path / "file").read_text() == "data in /a\\udcff"


def test_devices_are_not_read():
    """One of them never ends."""
    for path in ("/dev/zero", "/dev/full", "/dev/null"):
        with pytest.raises(OSError, match="a device, not a file"):
            files.read(path)


# --- a disk that is full ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_calibrate_on_a_full_disk_keeps_the_old_file_and_computes_nothing(tmp_path):
    """A limit on the size of files is what a full disk is to a process."""
    out = tmp_path / "c.safetensors"
    out.write_bytes(b"the one from yesterday")
    (tmp_path / "text").write_text("some words " * 2000)
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "import longspan.hf.calibration.calibrate as made\n"
        "def never(*args, **given): sys.exit('it computed')\n"
        "made.calibrate_each = never\n"
        "from longspan.cli import main; main()"
    )
    args = ["calibrate", "bundled", "--text", tmp_path / "text", "--out", out]
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr == f"longspan: error: {out}: File too large\n"
    assert out.read_bytes() == b"the one from yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.safetensors", "text"]
