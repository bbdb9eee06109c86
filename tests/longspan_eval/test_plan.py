"""Keys that change with all that a sample depends on, depths in turn, and the order of work."""

from __future__ import annotations

import pytest

from longspan.errors import LongspanError
from longspan_eval import passkey, scored_passkey
from longspan_eval.plan import schedule
from longspan_eval.rows import parse_row
from longspan_eval.scored_passkey import plan_cell
from longspan_eval.subject import Subject

SUBJECT = Subject(512, "a" * 64)


def cell(spec="dca", multiple=4.0, filler="noise", prompts=1, subject=SUBJECT, **more):
    return plan_cell(subject, parse_row(spec), multiple, filler, prompts, **more)


def key(**given):
    return cell(**given).asks[0].key


CHANGES = {
    "length": {"multiple": 8.0},
    "filler": {"filler": "prose"},
    "seed": {"seed": 1},
    "depth": {"depth": 0.25},
    "method": {"spec": "rerope"},
    "a parameter": {"spec": "dca:chunk_size=100"},
    "an angle": {"spec": "dca:angles=yarn"},
    "the model": {"subject": Subject(512, "b" * 64)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_changes_with(change):
    assert key() != key(**CHANGES[change])


@pytest.mark.parametrize("name", ["VERSION", "NAME"])
def test_a_key_changes_with_the_task(monkeypatch, name):
    before = key()
    monkeypatch.setattr(passkey, name, "other")
    assert key() != before


def test_a_key_changes_with_what_is_scored(monkeypatch):
    before = key()
    monkeypatch.setattr(scored_passkey, "TARGETS", 128)
    assert key() != before


def test_a_key_does_not_change_with_how_a_row_is_written_or_how_many_prompts_there_are():
    assert key(spec="dca:chunk_size=384") == key(spec="dca")  # the default at this window
    assert [ask.key for ask in cell(prompts=60).asks[:7]] == [ask.key for ask in cell(prompts=7).asks]
    assert key(depth=0.0) == key()


def test_depths_come_in_turn():
    assert [ask.depth for ask in cell(prompts=7).asks] == [0, 0.25, 0.5, 0.75, 1, 0, 0.25]
    assert [ask.seed for ask in cell(prompts=3, seed=5).asks] == [5, 6, 7]
    assert {ask.depth for ask in cell(prompts=9, depth=0.5).asks} == {0.5}


def test_a_cell_has_its_length_in_tokens_and_its_parameters():
    made = cell(multiple=1.5)
    assert made.length == 768 and made.asks[0].length == 768 and made.parameters["chunk_size"] == 384
    with pytest.raises(LongspanError, match="at least 1"):
        cell(prompts=0)


def test_the_order_is_by_part_then_rank_and_nothing_comes_twice():
    cells = [cell("dca", prompts=60), cell("rerope", prompts=8), cell("dca:chunk_size=384", prompts=60)]
    order = {"dca": 1, "rerope": 0}
    parts = schedule(cells, lambda c: [], lambda c, part: (part, order[c.row.name]))
    assert [(part[0].row.label, len(part)) for part in parts] == [("rerope", 8), ("dca", 10), ("dca", 40), ("dca", 10)]
    asked = [ask.key for part in parts for ask in part]
    assert len(asked) == len(set(asked)) == 68


def test_what_is_done_is_left_out():
    made = cell(prompts=12)
    parts = schedule([made], lambda c: c.asks[3:11], lambda c, part: (part,))
    assert [ask.seed for part in parts for ask in part] == [0, 1, 2, 11]
    assert schedule([made], lambda c: c.asks, lambda c, part: (part,)) == []
