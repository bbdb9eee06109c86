"""Data files: what is wrong is said with file, line and field; what is right comes through as it is."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from longspan_eval.datafile import SAMPLES, DataFile, FileRef, given, read_file, read_records
from longspan_eval.errors import DataError
from longspan_eval.tasks import TASKS

FIELDS = {"text": str, "count": int, "share": float, "sure": bool, "names": list[str], "maybe": (list[str], type(None))}
GOOD = {"text": "a", "count": 1, "share": 0.5, "sure": True, "names": ["x"], "maybe": None}
FILE = DataFile("folder/data.jsonl", FIELDS, "the attic")


@pytest.fixture
def write(tmp_path):
    def write(data: bytes | str, name: str = FILE.name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return tmp_path

    return write


def test_lines_come_as_they_are(write):
    second = {**GOOD, "text": "b\u2028c\x85", "maybe": ["y"], "share": 2, "more": {"left": "alone"}}
    lines = [json.dumps(GOOD), "  ", json.dumps(second, ensure_ascii=False), ""]
    for text in ("\n".join(lines), "\ufeff" + "\r\n".join(lines)):
        assert read_file(FILE, write(text)) == [GOOD, second]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": 1}, "field 'text' must be text, not a whole number"),
        ({"text": None}, "field 'text' must be text, not null"),
        ({"count": "1"}, "field 'count' must be a whole number, not text"),
        ({"count": True}, "field 'count' must be a whole number, not true or false"),
        ({"count": 1.5}, "field 'count' must be a whole number, not a number"),
        ({"share": "x"}, "field 'share' must be a number, not text"),
        ({"share": False}, "field 'share' must be a number, not true or false"),
        ({"sure": 1}, "field 'sure' must be true or false, not a whole number"),
        ({"names": "x"}, "field 'names' must be a list, each of it text, not text"),
        ({"names": ["x", 2]}, "field 'names[1]' must be text, not a whole number"),
        ({"maybe": {}}, "field 'maybe' must be a list, each of it text or null, not an object"),
        ({"text": "ab\ud83d c"}, "field 'text' has \\ud83d without its other half at character 3"),
        ({"names": ["x", "\ude00"]}, "field 'names[1]' has \\ude00 without its other half at character 1"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(write, change, said):
    folder = write(json.dumps(GOOD) + "\n\n" + json.dumps({**GOOD, **change}))
    with pytest.raises(DataError) as raised:
        read_file(FILE, folder)
    assert str(raised.value) == f"{folder / FILE.name}, line 3: {said}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON .* at character 2"),
        (b'["a"]', "each line must be an object, not a list"),
        (b"{}", "field 'text' is missing"),
        (b'"\xff"', "not UTF-8"),
    ],
)
def test_a_wrong_line_is_named(write, line, said):
    folder = write(json.dumps(GOOD).encode() + b"\n" + line)
    with pytest.raises(DataError, match=rf"data\.jsonl, line 2: {said}"):
        read_file(FILE, folder)


def test_what_is_missing_is_named_with_the_way_out(write, tmp_path):
    with pytest.raises(DataError, match="this data folder does not exist"):
        read_file(FILE, tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"data\.jsonl: this file does not exist \(the attic\)"):
        read_file(FILE, tmp_path)
    with pytest.raises(DataError, match="holds no records"):
        read_file(FILE, write("\n \n"))
    with pytest.raises(DataError, match=r"reads longbench/trec\.jsonl .*: pass its folder"):
        read_records(TASKS["longbench-trec"], None)
    made = replace(TASKS["longbench-trec"], data=None)
    with pytest.raises(ValueError, match="is synthetic and reads no data"):
        read_records(made, SAMPLES)


def test_checks_and_unpacking_are_a_task_s(write):
    def check(record):
        if record["count"] > 2:
            raise ValueError("field 'count' is above 2")

    file = replace(FILE, check=check, unpack=lambda records, path: [{"n": len(records), "name": path.name}])
    assert read_file(file, write(json.dumps(GOOD))) == [{"n": 1, "name": "data.jsonl"}]
    with pytest.raises(DataError, match="line 1: field 'count' is above 2"):
        read_file(file, write(json.dumps({**GOOD, "count": 3})))


def test_whole_documents(write):
    file = DataFile("d.json", {"q": str}, parse=lambda document, path: document["all"])
    assert read_file(file, write('{"all": [{"q": "x"}]}', "d.json")) == [{"q": "x"}]
    for text, said in [
        ("{", "d.json: not one JSON document"),
        ('{"all": [{"q": "x"}, {}]}', "d.json: record 2: field 'q' is missing"),
        ('{"all": []}', "d.json: it holds no records"),
    ]:
        with pytest.raises(DataError, match=said):
            read_file(file, write(text, "d.json"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_file(file, write(b'"\xff"', "d.json"))


def test_a_reference_to_a_file_is_its_content(write, tmp_path):
    one, two = write("abc", "one") / "one", write("abc", "two") / "two"
    first, second = FileRef.to(one), FileRef.to(two)
    assert first == second and hash(first) == hash(second) and json.dumps(first) == json.dumps(str(second))
    again = pickle.loads(pickle.dumps(first))
    assert again == first and again.path == one and again.read() == b"abc"
    assert len(pickle.dumps(first)) < 1000
    one.write_bytes(b"abd")
    assert FileRef.to(one) != first
    with pytest.raises(DataError, match="one: changed since"):
        first.read()
    two.unlink()
    with pytest.raises(DataError, match="two: cannot be read"):
        second.read()


def test_given():
    assert given({"a": 1}, None, "x") == {"a": 1}
    with pytest.raises(ValueError, match="x builds prompts of records"):
        given(None, None, "x")
    with pytest.raises(ValueError, match=r"cannot be at depth 0\.5"):
        given({}, 0.5, "x")
