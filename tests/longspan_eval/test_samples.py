"""A benchmark's samples, compressed and as they come: killed anywhere, nothing is lost and nothing is there twice."""

from __future__ import annotations

import lzma
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from longspan.errors import LongspanError
from longspan_eval.journal import read_samples
from longspan_eval.sample import Sample

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import samples
from samples import JOURNAL, Samples, archive, read

ONE = Sample("dca", 512, 3, 0.25, "12345", " 12345.\r\n\u2028\ud800", 1.0, 2.5, 256, 0.5, None, "noise")
TWO = replace(ONE, seed=4)
LONG = replace(ONE, length=1024)
ARCHIVE, OF_LONG = archive(512), archive(1024)


@pytest.fixture
def packed(tmp_path):
    """A folder with one sample in the archive and one in the journal."""
    with Samples(tmp_path) as kept:
        kept.append("a", ONE)
        kept.pack()
        kept.append("b", TWO)
    return tmp_path


def test_both_are_read_as_one(packed):
    assert list(read_samples(packed / ARCHIVE)) == ["a"] and list(read_samples(packed / JOURNAL)) == ["b"]
    assert read(packed) == {"a": ONE, "b": TWO}
    with Samples(packed) as kept:
        assert kept.samples == {"a": ONE, "b": TWO}
    assert read(packed / "none") == {}


def test_packing_moves_all_and_leaves_nothing_else(packed):
    with Samples(packed) as kept:
        kept.pack()
        kept.append("c", ONE)
        kept.pack()
    assert read_samples(packed / ARCHIVE) == {"a": ONE, "b": TWO, "c": ONE}
    assert {path.name for path in packed.iterdir()} == {ARCHIVE, JOURNAL} and not (packed / JOURNAL).read_bytes()


def test_the_same_samples_are_the_same_bytes(packed, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    with Samples(packed) as kept, Samples(other) as again:
        kept.pack()
        before = (packed / ARCHIVE).stat().st_mtime_ns
        kept.pack()  # there is nothing to do
        for key, sample in kept.samples.items():
            again.append(key, sample)
        again.pack()
    assert (packed / ARCHIVE).read_bytes() == (other / ARCHIVE).read_bytes()
    assert (packed / ARCHIVE).stat().st_mtime_ns == before


def test_each_length_has_its_archive(packed):
    with Samples(packed) as kept:
        kept.append("long", LONG)
        kept.pack()
        before = (packed / OF_LONG).stat().st_mtime_ns
        kept.append("c", ONE)
        kept.pack()  # of one length alone
    assert read_samples(packed / ARCHIVE) == {"a": ONE, "b": TWO, "c": ONE}
    assert read_samples(packed / OF_LONG) == {"long": LONG} and (packed / OF_LONG).stat().st_mtime_ns == before


def test_of_two_the_journal_counts(packed):
    with Samples(packed) as kept:
        kept.append("a", TWO)
    assert read(packed) == {"a": TWO, "b": TWO}
    with Samples(packed) as kept:
        kept.pack()
    assert read_samples(packed / ARCHIVE) == {"a": TWO, "b": TWO}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_while_it_packs(packed, monkeypatch, moment):
    """Before the new archive takes the old one's place, or between that and emptying the journal."""
    real = os.replace

    def killed(source, target):
        if moment == "after":
            real(source, target)
        raise SystemExit(137)

    with Samples(packed) as kept:
        kept.append("c", ONE)
        monkeypatch.setattr(samples.os, "replace", killed)
        with pytest.raises(SystemExit):
            kept.pack()
    monkeypatch.undo()
    expected = {"a": ONE, "b": TWO, "c": ONE}
    assert read(packed) == expected
    with Samples(packed) as kept:
        kept.pack()
    assert read_samples(packed / ARCHIVE) == expected and read_samples(packed / JOURNAL) == {}


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"{}" + data, lambda data: data[:20] + data])
def test_a_damaged_archive_is_named_and_left_alone(packed, damage):
    path = packed / ARCHIVE
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    for use in (read, Samples):
        with pytest.raises(LongspanError, match=r"samples-512\.jsonl\.xz: this is not a complete xz file"):
            use(packed)
    assert path.read_bytes() == before
    path.write_bytes(lzma.compress(b"[]\n"))
    with pytest.raises(LongspanError, match=r"samples-512\.jsonl\.xz: line 1 holds no sample"):
        read(packed)
