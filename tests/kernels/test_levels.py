"""Levels of vectors: a processor gets the fastest library that it runs, and never one that it does not."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from longspan.kernels import cpu
from longspan.kernels.cpu import levels

SSE2 = "fpu tsc cx8 cmov mmx fxsr sse sse2 syscall nx lm"
NEHALEM = f"{SSE2} pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
SANDY_BRIDGE = f"{NEHALEM} xsave avx"
ZEN_3 = f"{SANDY_BRIDGE} fma movbe f16c abm bmi1 avx2 bmi2"
SKYLAKE_X = f"{ZEN_3} avx512f avx512dq avx512cd avx512bw avx512vl"
KNIGHTS_LANDING = f"{ZEN_3} avx512f avx512pf avx512er avx512cd"
PROCESSORS = [
    ("GenuineIntel", SSE2, "x86-64"), ("GenuineIntel", NEHALEM, "x86-64"), ("GenuineIntel", SANDY_BRIDGE, "x86-64"),
    ("AuthenticAMD", ZEN_3, "x86-64-v3"), ("GenuineIntel", KNIGHTS_LANDING, "x86-64-v3"),
    ("GenuineIntel", SKYLAKE_X, "x86-64-v4"), ("AuthenticAMD", SKYLAKE_X, "x86-64-v4-halved"),
    ("AuthenticAMD", f"{SKYLAKE_X} avx512_vp2intersect", "x86-64-v4"), ("", "", "x86-64"),
]  # fmt: skip


def cpuinfo(vendor: str, *cores: str) -> str:
    lines = "processor\t: {}\nvendor_id\t: {}\nmodel name\t: with avx512f in its name\nflags\t\t: {}\n"
    return "\n".join(lines.format(n, vendor, flags) for n, flags in enumerate(cores))


@pytest.mark.parametrize(("vendor", "flags", "name"), PROCESSORS)
def test_a_processor_gets_the_fastest_that_it_runs(vendor, flags, name):
    has = levels.features(cpuinfo(vendor, flags, flags))
    level = levels.choose("x86_64", has)
    assert level.name == name and level.needs <= has


@pytest.mark.parametrize("lacks", sorted(set(ZEN_3.split()) - set(SSE2.split())))
def test_one_feature_that_is_missing_takes_every_level_that_needs_it_away(lacks):
    has = levels.features(cpuinfo("GenuineIntel", " ".join(x for x in SKYLAKE_X.split() if x != lacks)))
    assert levels.choose("x86_64", has).name == "x86-64"


def test_what_one_core_lacks_none_is_given():
    assert levels.choose("x86_64", levels.features(cpuinfo("GenuineIntel", SKYLAKE_X, ZEN_3))).name == "x86-64-v3"


@pytest.mark.parametrize("machine", levels.LEVELS)
def test_every_kind_of_machine_has_a_level_without_needs_and_others_have_none(machine):
    assert levels.choose(machine, frozenset()) is levels.LEVELS[machine][-1]
    assert levels.choose("riscv64", levels.features()) is None


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A folder as a platform wheel has it, of files that are no libraries; what was loaded is forgotten afterwards."""
    monkeypatch.setattr(levels, "BUILT", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(levels, "features", lambda: frozenset(ZEN_3.split()))
    monkeypatch.delenv(cpu.SWITCH, raising=False)
    for level in levels.LEVELS["x86_64"]:
        level.file.write_bytes(b"no library")
    cpu.forget()
    yield tmp_path
    cpu.forget()


def test_a_wheel_is_asked_first_and_a_name_takes_another(built, monkeypatch):
    assert levels.shipped().name == "x86-64-v3" and levels.shipped("x86-64").file == built / "x86-64.so"
    assert cpu.origin() == "from the wheel, for x86-64-v3"
    cpu.forget()
    monkeypatch.setenv(cpu.SWITCH, cpu.HERE)
    assert cpu.origin().startswith("compiled here by ")
    for file in built.iterdir():
        file.unlink()
    assert levels.shipped() is None


def test_vectors_of_512_bits_that_are_halved_run_if_they_are_named(built, monkeypatch):
    monkeypatch.setattr(levels, "features", lambda: frozenset(SKYLAKE_X.split()))
    assert levels.shipped().name == "x86-64-v4-halved" and levels.shipped("x86-64-v4").name == "x86-64-v4"


@pytest.mark.parametrize(("name", "words"), [
    ("x86-64-v4", "does not run x86-64-v4: it lacks avx512bw"), ("avx", "avx is none of the libraries of this wheel"),
])  # fmt: skip
def test_a_level_that_cannot_run_is_refused_and_that_is_said_once(built, monkeypatch, capfd, name, words):
    monkeypatch.setenv(cpu.SWITCH, name)
    for _ in range(2):
        assert words in cpu.unavailable_reason()
    assert capfd.readouterr().err.count(words) == 1


def test_a_file_that_is_no_library_is_named(built, capfd):
    assert str(built / "x86-64-v3.so") in cpu.unavailable_reason()
    assert str(built) in capfd.readouterr().err


def test_the_features_are_those_of_this_processor():
    text = Path("/proc/cpuinfo")
    flags = text.read_text() if text.exists() else ""
    assert levels.features() - {levels.WHOLE} <= set(flags.split())
