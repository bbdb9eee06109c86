"""The libraries that a platform wheel carries, one for each level of vectors, and the one that a processor runs.

The hook that builds such a wheel (``hatch_build.py``) loads this file by itself, so it imports nothing of longspan.
"""

from __future__ import annotations

import platform
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

BUILT = Path(__file__).parent / "built"  # of a platform wheel alone

# The same memory is read as bytes, as integers and as fp32, which strict aliasing rules out.
_LOOSE = ("-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing")
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread", *_LOOSE)

_V3 = "cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2 xsave avx avx2 bmi1 bmi2 f16c fma abm movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"


class LevelError(Exception):
    """A level that was named cannot run; the message is the reason."""


@dataclass(frozen=True)
class Level:
    """A library of a platform wheel.

    Attributes:
        name: of its file, without the ending.
        flags: of the compiler, besides ``FLAGS``.
        needs: features of a processor that it is chosen for, as ``/proc/cpuinfo`` names them, or ``WHOLE``.
    """

    name: str
    flags: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()

    @property
    def file(self) -> Path:
        return BUILT / f"{self.name}.so"

    def lacks(self, has: AbstractSet[str]) -> AbstractSet[str]:
        """What a processor with these features is short of; one that halves vectors of 512 bits runs them, too."""
        return self.needs - has - {WHOLE}


# vectors.h says why Zen 4, which halves them, gets a library of its own.
WHOLE = "vectors of 512 bits computed whole"
# By what ``platform.machine()`` says; the first that a processor runs is the fastest. The sources name no feature of
# Arm, and compilers make nothing else of them there for dot products, fp16 or bf16.
LEVELS = {
    "x86_64": (
        Level("x86-64-v4", ("-march=x86-64-v4",), frozenset({*_V4.split(), WHOLE})),
        Level("x86-64-v4-halved", ("-march=x86-64-v4", "-D__znver4__"), frozenset(_V4.split())),
        Level("x86-64-v3", ("-march=x86-64-v3",), frozenset(_V3.split())),
        Level("x86-64", ("-march=x86-64",)),  # a system's compiler may take more for granted
    ),
    "aarch64": (Level("armv8-a", ("-march=armv8-a",)),),
    "arm64": (Level("apple"),),
}


def features(text: str | None = None) -> frozenset[str]:
    """What every core of this processor has and the system lets programs use; none if the system does not say.

    Args:
        text: of ``/proc/cpuinfo``, if it is not to be read.
    """
    if text is None:
        try:
            text = Path("/proc/cpuinfo").read_text(errors="replace")
        except OSError:
            text = ""
    pairs = [(key.strip(), value.split()) for key, _, value in (line.partition(":") for line in text.splitlines())]
    cores = [frozenset(value) for key, value in pairs if key == "flags"]
    found: frozenset[str] = frozenset.intersection(*cores) if cores else frozenset()
    halved = ("vendor_id", ["AuthenticAMD"]) in pairs and "avx512_vp2intersect" not in found  # which Zen 5 has
    return found if halved or "avx512f" not in found else found | {WHOLE}


def choose(machine: str, has: AbstractSet[str]) -> Level | None:
    """The fastest level for a kind of machine and the features of its processor; None if the kind has none."""
    return next((level for level in LEVELS.get(machine, ()) if level.needs <= has), None)


def shipped(name: str | None = None) -> Level | None:
    """The level that this machine runs, of those that came with the wheel; None if none did.

    Args:
        name: of another one to take.

    Raises:
        LevelError: it did not come with the wheel, or this processor does not run it.
    """
    machine, has = platform.machine(), features()
    if name is None:
        level = choose(machine, has)
        return level if level is not None and level.file.is_file() else None
    here = [level for level in LEVELS.get(machine, ()) if level.file.is_file()]
    level = next((level for level in here if level.name == name), None)
    if level is None:
        raise LevelError(f"{name} is none of the libraries of this wheel ({', '.join(x.name for x in here) or 'none'})")
    if lacks := level.lacks(has):
        raise LevelError(f"this processor does not run {name}: it lacks {', '.join(sorted(lacks))}")
    return level
