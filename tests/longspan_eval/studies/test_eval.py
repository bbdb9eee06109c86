"""What is measured: keys that change with all that a sample depends on, prompts, order."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from longspan.errors import LongspanError
from longspan_eval.measure import Keys, TaskPrompt
from longspan_eval.reproduce.measures import Inspected
from longspan_eval.spec import STOCK, parse_spec
from longspan_eval.tasks import TASKS
from longspan_eval.tasks.passkey import scored_passkey
from support.studies import DEEP, MADE, READ, SUBJECT, plan_of, study, task


def keys(made, **more):
    return [key for keys in plan_of(made, **more).keys for key in keys]


@pytest.fixture
def data(tmp_path):
    lines = [json.dumps({"answer": n}) for n in range(9)]
    (tmp_path / "read.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


CHANGES = {
    "the task": {"tasks": (task("other"),)},
    "its version": {"tasks": (replace(MADE, version=2),)},
    "the room for an answer": {"tasks": (replace(MADE, new_tokens=5),)},
    "the length": {"lengths": (513,)},
    "the method": {"specs": ("rerope",)},
    "a parameter": {"specs": ("dca:chunk_size=100",)},
    "the seed": {"seed": 1000},
    "the weights": {"subject": replace(SUBJECT, sha256="c" * 64)},
    "the tokenizer": {"subject": replace(SUBJECT, tokenizer_sha256="c" * 64)},
    "the window": {"subject": replace(SUBJECT, window=500)},
    "the device": {"device": "cuda"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_changes_with(change):
    given = {"lengths": (512,), **CHANGES[change]}
    plan = {name: given.pop(name) for name in ("subject", "device") if name in given}
    before = keys(study(lengths=(512,)))
    now = keys(study(**given), **plan)
    assert len(before) == len(now) == len(set(before)) == 8
    same = set(before) & set(now)
    assert same <= set(before[:4]), "the row of the method changes at least"
    assert not same or change in ("the method", "a parameter"), (
        "stock's do too, but for its parameters, of which it has none"
    )


def test_a_key_changes_with_the_versions(monkeypatch):
    before = keys(study())
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert not set(before) & set(keys(study()))


def test_a_key_changes_with_the_record_and_nothing_else_of_the_file(data):
    made = {"tasks": (READ,), "lengths": (512,), "samples": 9, "data_dir": data}
    before = set(keys(study(**made)))
    lines = (data / "read.jsonl").read_text().splitlines()
    lines[4] = '{"answer": "other"}'
    (data / "read.jsonl").write_text("\n".join(lines))
    assert len(before & set(keys(study(**made)))) == len(before) - 2  # stock and dca


def test_a_key_does_not_change_with_how_a_row_is_written_or_what_stands_beside_it():
    few = keys(study(specs=("dca",), samples=2, lengths=(1024,)))
    many = keys(study((MADE, DEEP), ("rerope", "dca:chunk_size=384", "stock"), samples=50))
    assert set(few) <= set(many)


def test_a_key_changes_with_the_filler_and_the_scored_tokens():
    tasks = [TASKS["passkey"], TASKS["passkey-prose"]]
    tasks += [scored_passkey(filler, targets) for filler in ("noise", "prose") for targets in (64, 256)]
    every = [key for one in tasks for key in keys(study((one,), lengths=(512,), samples=1))]
    assert len(set(every)) == len(every) == 2 * len(tasks)
    looks = [Inspected(parse_spec("dca"), 512, task=one) for one in tasks]
    assert len({Keys(SUBJECT)(one) for one in looks}) == len(tasks)


def test_the_key_of_a_task_that_is_alone_under_its_name_stays_what_it_was():
    one = TaskPrompt(parse_spec("stock"), 512, 3, task=TASKS["passkey"], depth=0.5)
    assert one.depends_on(Keys(SUBJECT)) == {
        "task": "passkey", "version": 2, "new_tokens": 8, "length": 512, "method": "stock", "parameters": {},
        "seed": 3, "depth": 0.5, "record": None,
    }  # fmt: skip


def test_stock_stands_beside_the_others():
    assert [spec.label for spec in study(specs=("dca", "rerope")).specs] == [STOCK, "dca", "rerope"]
    assert [spec.label for spec in study(specs=("dca", "stock")).specs] == ["dca", STOCK]


def test_more_samples_or_a_task_without_depths_leave_the_others_as_they_are():
    few, many = study((DEEP, MADE), samples=3, depths=5), study((DEEP, MADE), samples=7, depths=5)
    assert set(keys(few)) < set(keys(many))
    prompts = list(few.prompts(DEEP))
    assert [depth for _, depth, _ in prompts] == [0, 0.25, 0.5, 0.75, 1] * 3
    assert [seed for seed, _, _ in prompts] == list(range(15)), "each prompt is drawn by itself"
    assert [depth for _, depth, _ in few.prompts(MADE)] == [None] * 3
    assert study((DEEP,), depths=1).depths_of(DEEP) == (0.5,) and study((DEEP,)).depths_of(DEEP) == (None,)


def test_records_are_drawn_from_all_of_a_file_and_more_samples_add_to_them(data):
    drawn = [
        [record["answer"] for _, _, record in study((READ,), samples=n, data_dir=data).prompts(READ)]
        for n in (3, 6, 9, 50)
    ]
    assert drawn[0] == drawn[3][:3] and drawn[1] == drawn[3][:6] and drawn[2] == drawn[3]
    assert sorted(drawn[3]) == list(range(9)) and drawn[0] != [0, 1, 2]
    assert drawn[3] != [r["answer"] for _, _, r in study((READ,), seed=1, samples=9, data_dir=data).prompts(READ)]
    seeds = {record["answer"]: seed for seed, _, record in study((READ,), seed=70, data_dir=data).prompts(READ)}
    assert all(seed == 70 + number for number, seed in seeds.items())


def test_data_that_is_not_there_is_named(tmp_path):
    for folder, words in (
        (None, "--data-dir"),
        (tmp_path / "no", "this folder does not exist"),
        (tmp_path, "read.jsonl"),
    ):
        with pytest.raises(LongspanError, match=words):
            study((READ,), data_dir=folder).cells()


def test_a_length_that_is_too_short_is_named():
    study(lengths=(20, 512)).check(None)
    with pytest.raises(LongspanError, match="made at 19 tokens: 19 tokens are too few: the task takes 20"):
        study(lengths=(512, 19)).check(None)


def order(made, **more):
    parts = plan_of(made).left({}, rank=made.rank(**more))
    return [(part[0].measure.spec.label, part[0].measure.length, len(part)) for part in parts]


def test_short_prompts_come_first_and_long_ones_on_a_cluster():
    made = study(specs=("dca",), samples=12)
    assert order(made) == [(r, n, k) for k in (10, 2) for n in (512, 1024) for r in ("stock", "dca")]
    far = order(made, longest_first=True)
    assert [n for _, n, _ in far] == [1024] * 4 + [512] * 4
    limited = order(replace(made, max_full_seconds=9.0), longest_first=True)
    assert [n for row, n, _ in limited if row == "dca"] == [1024, 1024, 512, 512]
    assert [n for row, n, _ in limited if row == "stock"] == [512, 512, 1024, 1024], (
        "what is long is known from the short"
    )
