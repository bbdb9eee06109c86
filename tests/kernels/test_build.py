"""The library in C: made once, kept whole, and what is said where it cannot be made."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import longspan
from longspan.errors import LongspanError
from longspan.kernels import cpu
from longspan.kernels.cpu import build, structs
from support.hf_models import make, prompts

try:
    build.compiler()
except build.BuildError as error:
    pytest.skip(str(error), allow_module_level=True)

BUILD = """
import sys
from longspan.kernels.cpu.build import compiler, library_for
with library_for(compiler()) as library:
    print(library)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "longspan"


@pytest.fixture
def quick(monkeypatch):
    """Compiles without optimising, which is all the same here."""
    # Optimising takes seconds per compilation.
    monkeypatch.setattr(build, "FLAGS", ("-std=gnu11", "-fPIC", "-shared"))
    monkeypatch.setattr(build, "NATIVE", ("-Wall", "-Wall"))


@pytest.fixture
def unbuilt(monkeypatch):
    """The library is looked for anew, within the test and after it."""
    cpu.forget()
    yield
    cpu.forget()


def built(cc=None, load=True):
    with build.library_for(cc or build.compiler()) as library:
        assert not load or works(library)
        return library


def works(library: Path) -> bool:
    return hasattr(ctypes.CDLL(str(library)), "longspan_units_decode")


@pytest.mark.long
def test_it_is_made_once(cache, quick, monkeypatch):
    library = built()
    assert library.parent == cache and cache.stat().st_mode & 0o077 == 0
    # A second compilation would raise.
    monkeypatch.setattr(build, "compile_to", None)
    assert built() == library
    assert sorted(path.suffix for path in cache.iterdir()) == [".sha256", ".so"]


def test_its_name_is_what_it_depends_on(monkeypatch):
    cc = build.compiler()
    names = {build.library_name(cc)}
    # Another machine.
    monkeypatch.setattr(build, "processor", lambda: "another")
    names.add(build.library_name(cc))
    # Other flags.
    monkeypatch.setattr(build, "FLAGS", ("-O1",))
    names.add(build.library_name(cc))
    # Another version of the compiler.
    monkeypatch.setattr(build, "version", lambda cc: "2.0")
    names.add(build.library_name(cc))
    assert len(names) == 4


@pytest.mark.long
def test_structures_of_another_size_are_not_compiled(cache, quick, monkeypatch):
    # A compiler that leaves gaps between fields is not to be had here.
    monkeypatch.setattr(structs.ALL["Keys"], "size", structs.ALL["Keys"].size + 8)
    with pytest.raises(build.BuildError, match="Python packs Keys in another size"):
        built()


@pytest.mark.long
@pytest.mark.parametrize("harm", ["cut", "empty", "seal", "other"])
def test_a_file_that_is_not_whole_is_made_again(cache, quick, harm):
    library = built(load=False)  # a loaded one may not be written over
    seal, whole = library.with_suffix(".sha256"), library.read_bytes()
    if harm == "seal":
        seal.unlink()
    else:
        library.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "other": b"x" + whole[1:]}[harm])
    assert not build.whole(library)
    assert built() == library
    assert build.whole(library)


@pytest.mark.long
def test_two_processes_at_once(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen([sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names = {process.communicate(timeout=300)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0] and len(names) == 1
    assert build.whole(Path(names.pop()))
    assert not list((tmp_path / "longspan").glob("building-*"))


@pytest.mark.long
@pytest.mark.parametrize("why", ["file", "denied"])
def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, quick, why):
    """It is made for this process alone."""
    place = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    if why == "file":
        place.write_text("no folder")
    else:

        def denied(*_, **given):
            if str(given.get("dir", "")).startswith(str(place)):
                raise PermissionError(13, "Permission denied")
            return made(*_, **given)

        made = build.tempfile.TemporaryDirectory
        # Permissions do not bind root, which tests may run as.
        monkeypatch.setattr(build.tempfile, "TemporaryDirectory", denied)
    library = built()
    assert place not in library.parents and not library.parent.exists()


@pytest.mark.long
@pytest.mark.parametrize("who", ["the folder", "the file"])
def test_what_others_may_write_is_not_loaded(cache, quick, who):
    library = built()
    (library.parent if who == "the folder" else library).chmod(0o777)
    again = built()
    if who == "the folder":
        assert library.parent not in again.parents
    else:
        assert again == library and not library.stat().st_mode & 0o022


@pytest.mark.long
def test_there_need_be_no_home(monkeypatch, quick):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    # A user without a home is not to be had here.
    monkeypatch.setattr(build.Path, "home", nowhere)
    assert not built().exists()


def test_a_compiler_that_hangs_is_ended(cache, monkeypatch, tmp_path, unbuilt):
    cc = tmp_path / "cc"
    cc.write_text("#!/bin/sh\n[ $1 = --version ] && echo mine 1.0 && exit\nsleep 600 & wait\n")
    cc.chmod(0o755)
    # The limit is minutes.
    monkeypatch.setattr(build, "SECONDS", 0.5)
    monkeypatch.setenv("CC", str(cc))
    assert "took more than 0.5 s" in cpu.unavailable_reason()
    assert [path.suffix for path in cache.iterdir()] == [".failed"]


@pytest.mark.long
def test_a_compiler_has_arguments(cache, quick, monkeypatch):
    monkeypatch.setenv("CC", f"{build.compiler()[0]} -g")
    assert build.compiler()[1:] == ("-g",)
    built()


def test_a_switch_and_named_implementations_leave_it_out(monkeypatch, unbuilt):
    monkeypatch.setenv(cpu.SWITCH, "0")
    assert cpu.unavailable_reason() == f"{cpu.SWITCH}=0 is set"
    monkeypatch.undo()
    cpu.forget()
    called, model = [], make("llama")
    for impl in ("torch", "compiled"):
        longspan.extend(model, "longheads", impl=impl)
        called.clear()
        with cpu.settings(around=lambda name, threads, run: called.append(name) or run()):
            model.generate(prompts(1, 100), max_new_tokens=3, do_sample=False)
        longspan.restore(model)
        assert bool(called) == (impl == "compiled")


def test_a_compiler_that_fails_says_why(cache, monkeypatch, tmp_path):
    cc = tmp_path / "cc"
    cc.write_text("#!/bin/sh\n[ $1 = --version ] && echo mine 1.0 && exit\necho 'no such option' >&2; exit 3\n")
    cc.chmod(0o755)
    with pytest.raises(build.BuildError, match="cc does not compile the kernels: no such option"):
        built((str(cc),))
    assert [path.suffix for path in cache.iterdir()] == [".failed"]


def test_the_compiler_is_the_one_that_is_named(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.BuildError, match="CC=no-such-compiler is not there"):
        build.compiler()


def test_without_a_compiler_torch_runs_and_says_so(monkeypatch, cache, unbuilt):
    monkeypatch.delenv("CC", raising=False)
    # The machine has a compiler.
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    model = make("llama")
    with pytest.raises(LongspanError, match="impl='compiled'.*no C compiler was found.*leave impl out"):
        longspan.extend(model, "longheads", impl="compiled")
    report = longspan.extend(model, "longheads")
    assert "torch operations" in report.kernels and report.to_dict()["kernels"] == report.kernels
    assert any("no C compiler was found" in note and "gcc" in note for note in report.warnings)
    assert "no C compiler" in str(report).replace("\n", " ")
    without = model.generate(prompts(1, 100), max_new_tokens=5, do_sample=False)
    longspan.restore(model)
    monkeypatch.undo()
    cpu.forget()
    report = longspan.extend(model, "longheads")
    assert "C kernels;" in report.kernels and not any("compiler" in note for note in report.warnings)
    assert torch.equal(model.generate(prompts(1, 100), max_new_tokens=5, do_sample=False), without)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_threads_share_what_is_enough_for_several(three_threads):
    used, each = [], cpu.KernelSettings().numbers_per_thread
    for items, numbers, threads in (
        (8, 5, [1]),
        (8, 2 * each - 1, [1]),
        (8, 2 * each, [3]),
        (2, 99 * each, [3]),
        (1, 99 * each, [1]),
        (2, None, [3]),
        (0, 99 * each, []),
    ):
        used.clear()
        with cpu.settings(around=lambda name, threads, run: used.append(threads)):
            cpu.run("anything", items, b"", numbers)
        assert used == threads


def test_a_process_that_is_copied_has_threads_of_its_own():
    code = """
        import os, sys, torch
        torch.set_num_threads(2)
        from longspan.kernels import cpu
        from longspan.kernels.topk import topk
        scores = torch.rand(4, 9)
        with cpu.settings(numbers_per_thread=1):
            topk(scores, 3, impl="compiled")
            child = os.fork()
            if child == 0:
                topk(scores, 3, impl="compiled")
                os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True, timeout=120)


@pytest.mark.parametrize(("processor", "sixteen"), [
    ("", False), ("AVX512F", True), ("AVX512F znver3", False), ("AVX512F znver4", False),
    ("AVX512F AVX512VP2INTERSECT znver3", True), ("AVX512F AVX512VP2INTERSECT znver4", True), ("AVX512F znver5", True),
])  # fmt: skip
def test_vectors_of_sixteen_are_for_processors_that_compute_them_whole(processor, sixteen):
    """A compiler from before Zen 5 calls it Zen 3 or Zen 4."""
    states = ("AVX512F", "AVX512VP2INTERSECT", "znver3", "znver4", "znver5")
    words = [f"-U__{state}__" for state in states] + [f"-D__{state}__" for state in processor.split()]
    header = build.SOURCES / "lanes.h"
    ran = subprocess.run(
        [*build.compiler()[0].split(), *words, "-E", "-dM", str(header)], capture_output=True, check=True
    )
    assert (b"#define SIXTEEN" in ran.stdout) == sixteen


def test_a_number_for_sixteen_lanes_is_read_and_not_computed():
    """A sum of it and zero is no copy, since it makes 0 of -0, so compilers leave it in the innermost loop."""
    cc, words = build.compiler()[0], ["-mavx512f", "-U__znver3__", "-U__znver4__"]
    if subprocess.run([cc, *words, "-fsyntax-only", "-x", "c", os.devnull], capture_output=True).returncode:
        pytest.skip("no compiler for AVX-512")
    products = "void f(float *to, const float *const *a, const float *b, int n) { scores_6(to, a, b, n); }"
    ran = subprocess.run(
        [cc, *build.FLAGS, *words, f"-I{build.SOURCES}", "-S", "-o", "-", "-x", "c", "-"],
        input=f'#include "lanes.h"\n{products}', capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert "vfmadd" in ran.stdout and "addss" not in ran.stdout and "zmm" in ran.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "flags", ["-U__znver3__ -U__znver4__", "-D__znver4__ -U__AVX512VP2INTERSECT__", "-mno-avx512f"]
)
def test_kernels_keep_to_their_contracts_with_other_vectors(flags, tmp_path):
    """Of sixteen numbers and of eight, whatever this processor is given by itself."""
    cc = f"{build.compiler()[0]} {flags}"
    if subprocess.run([*cc.split(), "-fsyntax-only", "-x", "c", os.devnull], capture_output=True).returncode:
        pytest.skip(f"{cc} is not understood here")
    environment = {**os.environ, "CC": cc, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    files = [
        str(Path(__file__).with_name(f"test_{name}.py"))
        for name in ("compiled", "compiled_many", "decode", "scores", "products")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert len(list((tmp_path / "longspan").glob("*.so"))) == 1
