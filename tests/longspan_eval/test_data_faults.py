"""Faults of data files are named with file, line and field before a model is loaded."""

from __future__ import annotations

import json
import shutil

import pytest

from longspan_eval.datafile import SAMPLES, read_records
from longspan_eval.errors import DataError
from longspan_eval.tasks import TASKS

DATA = {name: task for name, task in TASKS.items() if task.data is not None}


def first(name):
    return read_records(DATA[name], SAMPLES)[0]


def line(name, **change):
    record = json.loads((SAMPLES / DATA[name].data.name).read_text(encoding="utf-8").splitlines()[0])
    return json.dumps({**record, **change})


FAULTS = [
    ("longbench-qasper", {"answers": []}, "field 'answers' must hold at least one answer"),
    ("longbench-qasper", {"answers": "yes"}, "field 'answers' must be a list"),
    ("longbench-e-trec", {"all_classes": None}, "'all_classes' all of them"),
    ("longbench-trec", {"answers": ["Food", "Date"]}, "must hold one answer"),
    ("longbench-passage-retrieval-en", {"answers": ["4"]}, r"field 'answers\[0\]' must name a paragraph"),
    ("leval-toefl", {"outputs": ["A"]}, "one item a question, not 2 and 1"),
    ("leval-toefl", {"outputs": ["A", "x"]}, r"field 'outputs\[1\]' must begin with letters"),
    ("leval-sfiction", {"outputs": ["True", "A"]}, r"field 'outputs\[1\]' must say True or False"),
    ("leval-sfiction", {"outputs": ["True", "True [fact: B]"]}, r"field 'outputs\[1\]' must say True or False"),
    ("fewshot-qasper", {"input": "A question alone"}, "a question, a blank line, and a document"),
    ("fewshot-qasper", {"output": None}, "field 'output' must be text, not null"),
    ("infinitebench-en-mc", {"options": ["a", "b"]}, "must hold four options"),
    ("infinitebench-en-mc", {"answer": ["Nobody"]}, "must begin with one of the options"),
    ("infinitebench-code-debug", {"answer": ["spread", "A"]}, "right option's letter alone"),
]


@pytest.mark.parametrize(("name", "change", "fault"), FAULTS)
def test_faults_are_named(tmp_path, name, change, fault):
    shutil.copytree(SAMPLES, tmp_path / "data")
    path = tmp_path / "data" / DATA[name].data.name
    path.write_text(line(name) + "\n" + line(name, **change), encoding="utf-8")
    with pytest.raises(DataError, match=rf"{path.name}, line 2: .*{fault}"):
        read_records(DATA[name], tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "find", "replace", "fault"),
    [
        ("ruler-qa-1", '"context"', '"kontext"', r"data\[0\]\.paragraphs\[0\]: field 'context' is missing"),
        ("ruler-qa-1", '"context": "Holm', '"kontext": "Holm', r"\.paragraphs\[1\]: field 'context' is missing"),
        ("ruler-qa-1", '"text"', '"test"', r"qas\[0\]\.answers\[0\]: field 'text' is missing"),
        ("ruler-qa-1", '"data"', '"dada"', "squad.json: field 'data' is missing"),
        ("ruler-qa-1", '"is_impossible": true', '"is_impossible": false', "'Who painted .*' has no answer"),
        ("ruler-qa-2", '"answer": "Kessel"', '"answer": 3', "question 1: field 'answer' must be text"),
        ("ruler-qa-2", '"Sarn",', "", r"question 1: field 'context\[0\]' must be a title and a list"),
    ],
)
def test_faults_of_documents_are_named(tmp_path, name, find, replace, fault):
    shutil.copytree(SAMPLES, tmp_path / "data")
    path = tmp_path / "data" / DATA[name].data.name
    text = path.read_text(encoding="utf-8")
    assert find in text
    path.write_text(text.replace(find, replace), encoding="utf-8")
    with pytest.raises(DataError, match=fault):
        read_records(DATA[name], tmp_path / "data")


def test_a_training_file_has_no_question_that_is_asked(tmp_path):
    shutil.copytree(SAMPLES, tmp_path / "data")
    path = tmp_path / "data/scrolls/qasper/train.jsonl"
    asked = path.with_name("validation.jsonl").read_bytes().split(b"\n")[0]
    path.write_bytes(path.read_bytes() + asked)
    with pytest.raises(DataError, match=r"train\.jsonl: 1 of its questions are in validation\.jsonl, too"):
        read_records(DATA["fewshot-qasper"], tmp_path / "data")


def test_a_training_file_is_needed_checked_and_large_enough(tmp_path, tokenizer):
    shutil.copytree(SAMPLES, tmp_path / "data")
    task, path = DATA["fewshot-qasper"], tmp_path / "data/scrolls/qasper/train.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0]] * 2), encoding="utf-8")
    with pytest.raises(DataError, match="2 examples are needed, and it holds 1"):
        read_records(task, tmp_path / "data")
    path.write_text("\n".join(lines[:3]), encoding="utf-8")
    record = read_records(task, tmp_path / "data")[0]
    path.write_text("\n".join([*lines, "{}"]), encoding="utf-8")
    with pytest.raises(DataError, match=rf"train\.jsonl, line {len(lines) + 1}: field 'id' is missing"):
        read_records(task, tmp_path / "data")
    with pytest.raises(DataError, match="changed since its records were read"):
        task.build(tokenizer, length=900, seed=0, record=record)
    path.unlink()
    with pytest.raises(DataError, match=r"train\.jsonl: this file does not exist"):
        read_records(task, tmp_path / "data")
