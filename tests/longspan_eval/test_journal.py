"""Samples on disk: whole lines only, one writer, and nothing that was written is ever lost."""

from __future__ import annotations

import errno
import json
import math
from dataclasses import replace

import pytest

from longspan.errors import LongspanError
from longspan_eval.journal import Journal, read_samples
from longspan_eval.sample import Sample

ONE = Sample("dca", 512, 3, 0.25, "12345", " 12345.\r\n\u2028\ud800", 1.0, 2.5, 256, 0.5, None, "noise")
FAILED = Sample("pi", 512, 4, 0.5, "", error="out of memory", filler="prose")


def same(a, b):
    return replace(a, loss=0) == replace(b, loss=0) and (
        a.loss == b.loss or (math.isnan(a.loss) and math.isnan(b.loss))
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "samples.jsonl"


@pytest.fixture
def written(path):
    with Journal(path) as journal:
        journal.append("a", ONE)
        journal.append("b", FAILED)
    return path


def test_what_goes_in_comes_out(written):
    samples = read_samples(written)
    assert list(samples) == ["a", "b"] and same(samples["a"], ONE) and same(samples["b"], FAILED)
    with Journal(written) as journal:
        assert list(journal.samples) == ["a", "b"]
    assert read_samples(written.with_name("none")) == {}


def test_a_sample_of_any_task_comes_out_as_it_went_in(path):
    sample = replace(ONE, depth=None, filler="", task="ruler-vt", tokens=504, references=("a", "b"))
    with Journal(path) as journal:
        journal.append("a", sample)
    assert read_samples(path)["a"] == sample and b"filler" not in path.read_bytes()


def test_a_line_from_before_there_were_other_tasks_is_read(path, written):
    assert not {"task", "tokens", "references"} & set(json.loads(written.read_text().splitlines()[0]))
    one = read_samples(written)["a"]
    assert (one.task, one.tokens, one.references, one.filler) == ("", 0, (), "noise")


def test_scored_tokens_without_a_loss_from_before_that_was_an_error_are_one(path):
    with Journal(path) as journal:
        journal.append("a", replace(ONE, loss=math.nan))
        journal.append("b", replace(ONE, loss=math.nan, scored=0))
    a, b = read_samples(path).values()
    assert "NaN or infinite" in a.error and b.error is None


def test_what_seconds_depend_on_is_kept_where_it_is_known(path, written):
    assert not {"kv_tier", "threads"} & set(json.loads(written.read_text().splitlines()[0]))
    one = read_samples(written)["a"]
    assert (one.kv_tier, one.threads) == ("", 0) and not one.timed_under("device", 1)
    with Journal(path) as journal:
        journal.append("c", replace(ONE, kv_tier="disk", threads=2))
    again = read_samples(path)["c"]
    assert again.timed_under("disk", 2) and not again.timed_under("disk", 1) and not again.timed_under("device", 2)


def test_a_sample_is_on_disk_when_append_returns(path):
    journal = Journal(path)
    journal.append("a", ONE)
    assert "a" in read_samples(path)
    journal.close()


@pytest.mark.parametrize("cut", [1, 2, 20, 100])
def test_a_torn_last_line_is_dropped_and_the_next_is_whole(written, cut):
    data = written.read_bytes()
    written.write_bytes(data[:-cut])
    assert list(read_samples(written)) == ["a"] and written.read_bytes() == data[:-cut]  # reading changes nothing
    with Journal(written) as journal:
        assert list(journal.samples) == ["a"]
        journal.append("c", FAILED)
    assert list(read_samples(written)) == ["a", "c"]


@pytest.mark.hostile
def test_a_full_disk_costs_a_journal_the_last_sample_alone(tmp_path):
    path = tmp_path / "samples.jsonl"
    with Journal(path) as journal:
        journal.append("a", ONE)
        whole = path.read_bytes()
        real = journal._file

        class Full:
            def write(self, line):
                return real.write(line[:20])

            def __getattr__(self, name):
                return getattr(real, name)

        journal._file = Full()
        with pytest.raises(OSError) as told:
            journal.append("b", ONE)
        assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(path))
        assert path.read_bytes() == whole and list(journal.samples) == ["a"]
        journal._file = real
        journal.append("c", ONE)
    assert list(read_samples(path)) == ["a", "c"]


def test_of_two_with_one_key_the_later_counts(written):
    with Journal(written) as journal:
        journal.append("b", ONE)
    assert read_samples(written)["b"].error is None


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "Expecting"),
        ("[" * 100_000, "nested too deep"),
        ("", "it is empty"),
        ("null", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{}", "its key is missing"),
        ('{"key": 3}', "its key is not a text"),
        ('{"key": "a"}', "it has no answer, depth, length, loss, method, seed"),
        ('{"key": "a", "colour": 3}', "it has colour, which no sample has"),
    ],
)
def test_a_damaged_line_is_named(written, line, says):
    first, second = written.read_bytes().splitlines()
    written.write_bytes(b"\n".join([first, line.encode(), second, b""]))
    for use in (read_samples, Journal):
        with pytest.raises(LongspanError) as told:
            use(written)
        assert f"{written}: line 2 holds no sample" in str(told.value) and says in str(told.value)
        assert "\n" not in str(told.value) and len(str(told.value)) < 400


def test_one_writer_at_a_time(written):
    pytest.importorskip("fcntl")
    with Journal(written), pytest.raises(LongspanError, match="another run"):
        Journal(written)
    Journal(written).close()


def test_clearing(written):
    with Journal(written) as journal:
        journal.clear()
        journal.append("c", ONE)
        with pytest.raises(LongspanError, match="another run"):
            Journal(written)
    assert list(read_samples(written)) == ["c"]
