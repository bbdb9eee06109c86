"""Perplexity as a task: the windows, that they give what the papers define, and that a run is taken up again."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
from statistics import fmean, stdev

import pytest
import torch

from longspan.bundled import heldout_text
from longspan.errors import LongspanError
from longspan_eval.datafile import FileRef
from longspan_eval.errors import DataError
from longspan_eval.perplexity import SLICE, sliced_losses, token_losses
from longspan_eval.session import Session
from longspan_eval.spec import parse_specs
from longspan_eval.studies.eval import Evaluation
from longspan_eval.tasks import TASKS
from longspan_eval.windows import PERPLEXITY, STANDARD, blocks, build, find_windows
from support.sliding import score_new, whole_windows
from support.studies import MADE, plan_of, report_of, requests

STRIDE = 32


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "book.txt"
    path.write_text("\ufeff" + heldout_text()[:2600], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def ids(file, tokenizer):
    return tokenizer(file.read_text(encoding="utf-8-sig"))["input_ids"]


def study(tokenizer, file, lengths=(96, 160), specs=("dca",), mode="new", **more):
    windows = find_windows(tokenizer, [file], longest=max(lengths), stride=STRIDE, mode=mode)
    return Evaluation((PERPLEXITY,), tuple(parse_specs(list(specs))), tuple(lengths), windows=windows, **more)


def examples(made, tokenizer, length):
    return [
        (record["at"], build(tokenizer, length=length, seed=seed, record=record))
        for seed, _, record in made.prompts(PERPLEXITY)
    ]


def test_in_mode_new_all_lengths_score_the_same_tokens(tokenizer, file, ids):
    made = study(tokenizer, file, samples=10**6)
    short, long = (sorted(examples(made, tokenizer, length), key=lambda one: one[0]) for length in (96, 160))
    assert [at for at, _ in short] == [at for at, _ in long] == list(range(160, len(ids) + 1, STRIDE))
    for (at, few), (_, many) in zip(short, long, strict=True):
        assert few.input_ids == ids[at - 96 : at] and many.input_ids == ids[at - 160 : at]
        scored = [[example.input_ids[n] for n in example.scored] for example in (few, many)]
        assert scored[0] == scored[1] == ids[at - STRIDE : at]


def test_in_mode_whole_they_begin_at_the_same_token(tokenizer, file, ids):
    made = study(tokenizer, file, mode="whole", samples=10**6)
    for length in (96, 160):
        found = sorted(examples(made, tokenizer, length), key=lambda one: one[0])
        assert [at for at, _ in found] == list(range(0, len(ids) - 160 + 1, STRIDE))
        assert all(one.input_ids == ids[at : at + length] for at, one in found)
        assert all(one.scored == tuple(range(1, length)) for _, one in found)


@pytest.mark.parametrize("mode", ["new", "whole"])
@pytest.mark.parametrize("row", ["stock", "streaming-llm:recent=24"])
def test_a_cell_has_the_perplexity_that_the_definitions_give(model, tokenizer, file, ids, mode, row):
    made = study(tokenizer, file, specs=(row,), mode=mode, samples=10**6)
    session = Session(model, tokenizer)
    cells = [cell for cell in made.cells() if cell.row == row]
    found = {cell.column: cell.figure_of([session.measure(one) for one in cell.measures]) for cell in cells}
    for length in (96, 160):
        session.attach(made.specs[-1], length)
        if mode == "new":
            upto = ids[: len(ids) - (len(ids) - 160) % STRIDE]  # a last window with fewer new tokens is not read
            wanted = score_new(model, upto, window=length, stride=STRIDE, skip=160 - STRIDE)
        else:
            upto = ids[: len(ids) - (160 - length)]
            wanted = whole_windows(model, upto, window=length, stride=STRIDE)
        assert found[str(length)].value == pytest.approx(wanted.value, rel=1e-5)
        assert found[str(length)].n == wanted.windows > 10 and found[str(length)].unit == "perplexity"


def fake(requests, losses):
    return {one.key: one.measure.sample(loss=loss, scored=STRIDE) for one, loss in zip(requests, losses, strict=False)}


def test_keys_depend_on_text_place_stride_and_mode_and_not_on_the_other_lengths(tokenizer, file, tmp_path):
    def keys(path=file, stride=STRIDE, mode="new", lengths=(96, 160)):
        windows = find_windows(tokenizer, [path], longest=max(lengths), stride=stride, mode=mode)
        made = Evaluation((PERPLEXITY,), tuple(parse_specs(["dca"])), lengths, windows=windows, samples=5)
        return {key for keys in plan_of(made).keys for key in keys}

    moved, changed = tmp_path / "moved.txt", tmp_path / "changed.txt"
    moved.write_bytes(file.read_bytes())
    changed.write_bytes(file.read_bytes() + b"!")
    assert len(keys()) == 2 * 2 * 5 and keys(moved) == keys()
    for other in (keys(changed), keys(stride=16), keys(mode="whole")):
        assert not other & keys()
    assert keys(lengths=(160,)) < keys(), "a window is the same whatever it is compared with"


def test_fewer_samples_are_some_of_more_from_all_of_the_text(tokenizer, file):
    places = [[at for at, _ in examples(study(tokenizer, file, samples=n), tokenizer, 96)] for n in (6, 12)]
    assert places[1][:6] == places[0] and places[0] != sorted(places[0])
    assert max(places[0]) - min(places[0]) > 6 * STRIDE


def test_a_record_finds_its_text_in_another_process(tokenizer, file, tmp_path):
    path = tmp_path / "gone.txt"
    path.write_text(heldout_text()[3000:6000], encoding="utf-8")
    record = find_windows(tokenizer, [path], longest=96, stride=STRIDE).records[3]
    again = pickle.loads(pickle.dumps(record))
    assert isinstance(again["text"], FileRef)
    assert build(tokenizer, length=96, seed=0, record=again) == build(tokenizer, length=96, seed=0, record=record)


def test_without_a_text_it_is_the_bundled_models_held_out_one(tokenizer):
    windows = find_windows(tokenizer, [], longest=4096)
    ((name, tokens),) = windows.texts
    assert name == STANDARD and tokens > 70_000
    assert windows.records[0]["text"] == hashlib.sha256(heldout_text().encode()).hexdigest()
    assert len(windows.records) == (tokens - 4096) // 256 + 1
    example = build(tokenizer, length=600, seed=0, record=windows.records[0])
    assert len(example.input_ids) == 600 and example.scored == tuple(range(344, 600))
    assert f"{len(windows.records):,} windows of {STANDARD}" in str(windows) and "mode new" in str(windows)


@pytest.mark.parametrize("mode", ["new", "whole"])
def test_a_text_as_long_as_a_window_is_one(tokenizer, file, ids, mode):
    for more, windows in ((0, 1), (STRIDE - 1, 1), (STRIDE, 2)):
        found = find_windows(tokenizer, [file], longest=len(ids) - more, stride=STRIDE, mode=mode).records
        assert len(found) == windows and found[-1]["at"] == (windows - 1) * STRIDE + (mode == "new") * (len(ids) - more)


def test_losses_of_more_tokens_than_a_slice_has():
    logits, tokens = torch.randn(2 * SLICE + 9, 7), torch.randint(7, (2 * SLICE + 12,))
    positions = range(5, 2 * SLICE + 12)
    assert sliced_losses(logits, tokens, positions) == token_losses(logits, tokens, positions).tolist()
    assert sliced_losses(logits, tokens, []) == []


def test_a_folder_is_its_texts(tokenizer, tmp_path):
    for name, begin in (("b.txt", 0), ("a.txt", 4000), ("c.md", 8000)):
        (tmp_path / name).write_text(heldout_text()[begin : begin + 2000], encoding="utf-8")
    windows = find_windows(tokenizer, [tmp_path], longest=100, stride=STRIDE)
    assert [name.rpartition("/")[2] for name, _ in windows.texts] == ["a.txt", "b.txt"]
    assert len(windows.records) == sum((tokens - 100) // STRIDE + 1 for _, tokens in windows.texts)


BAD = {
    "a text that is too short": ({"longest": 5000}, DataError, ["book.txt", "tokens", "5,000", "--text"]),
    "a stride of nothing": ({"stride": 0}, LongspanError, ["stride", "at least 1"]),
    "a mode that is none": ({"mode": "both"}, LongspanError, ["new or whole", "'both'"]),
    "a text that is not there": ({"paths": ["no.txt"]}, DataError, ["no.txt", "cannot be read"]),
    "a text that holds none": ({"paths": ["empty.txt"]}, DataError, ["empty.txt", "no text"]),
    "bytes that are no text": ({"paths": ["bytes.txt"]}, DataError, ["bytes.txt", "UTF-8"]),
    "a folder without texts": ({"paths": ["folder"]}, DataError, ["folder", "*.txt"]),
    "a text twice": ({"paths": ["one.txt", "two.txt"]}, DataError, ["two.txt", "same text", "one.txt"]),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_named(case, tokenizer, file, tmp_path):
    for name, data in {"empty": b" \n", "bytes": b"\xff", "one": b"a b", "two": b"a b"}.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    (tmp_path / "folder").mkdir()
    given, kind, words = BAD[case]
    given = {"paths": [file], "longest": 96, "stride": STRIDE, **given}
    paths = [tmp_path / path for path in given.pop("paths")]
    with pytest.raises(kind) as raised:
        find_windows(tokenizer, paths, **given)
    assert all(word in str(raised.value) for word in words), raised.value


def test_a_length_that_is_no_more_than_the_stride(tokenizer, file):
    with pytest.raises(LongspanError, match="perplexity at 32 tokens: with a stride of 32 a window takes 33 tokens"):
        study(tokenizer, file, lengths=(32, 96)).check(tokenizer)
    study(tokenizer, file, lengths=(32, 96), mode="whole").check(tokenizer)
    with pytest.raises(LongspanError, match="a window takes 2 tokens"):
        study(tokenizer, file, lengths=(1, 96), mode="whole").check(tokenizer)


def test_windows_belong_to_the_task(tokenizer, file):
    windows = find_windows(tokenizer, [file], longest=96)
    for tasks, given in (((PERPLEXITY,), None), ((MADE,), windows)):
        with pytest.raises(LongspanError, match="windows are for the task perplexity"):
            Evaluation(tasks, (), (96,), windows=given)
    with pytest.raises(LongspanError, match="perplexity has none"):
        study(tokenizer, file, depths=3)
    assert PERPLEXITY.name not in TASKS


def test_the_report_says_what_was_read(tokenizer, file, tmp_path):
    windows = study(tokenizer, file).windows
    made = Evaluation((PERPLEXITY, MADE), tuple(parse_specs(["dca"])), (96, 160), samples=3, windows=windows)
    report, losses = report_of(made, tmp_path), [3.0, 3.2, 3.4]
    samples = fake(requests(report.plan, PERPLEXITY.name)["stock", "96"], losses)
    report.write(samples)
    text = (tmp_path / "summary.md").read_text()
    assert f"windows of {file} (" in text and "a window every 32 tokens, mode new" in text
    assert "exp` of the mean loss" in text and "mean score in percent" in text and "score the same tokens" in text
    half = 4.303 * stdev(losses) / math.sqrt(3)
    assert f"| `stock` | 24.53 ({math.exp(3.2 - half):.2f}-{math.exp(3.2 + half):.2f}) n=3 | · |" in text
    body = json.loads((tmp_path / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert body["windows"]["texts"][0]["name"] == str(file) and body["windows"]["stride"] == 32
    assert body["tasks"]["perplexity"]["records"] == len(windows.records)
    assert body["tasks"]["perplexity"]["measure"] == body["cells"][0]["measure"] == "perplexity"
    assert body["cells"][0]["score"] == pytest.approx(math.exp(fmean(losses)))
    assert [path.name for path in report.draw(samples)] == ["scores.png"]


def test_windows_of_mode_whole_say_that_they_overlap(tokenizer, file, tmp_path):
    report = report_of(study(tokenizer, file, mode="whole", samples=10**6), tmp_path)
    for length in (96, 160):
        own = requests(report.plan)["stock", f"{length}"]
        report.write(fake(own, [3.0 + n / 10 for n in range(len(own))]))
        text = (tmp_path / "summary.md").read_text()
        assert "Windows of mode whole overlap: those that score the same tokens are one block" in text
        assert f" n={len(own)} |" in text and f") n={len(own)}" not in text and "mean score in percent" not in text
        cells = json.loads((tmp_path / "results.json").read_text())["cells"]
        (cell,) = (one for one in cells if one["n"])
        assert (cell["interval"], cell["blocks"], cell["n"]) == (None, 1, len(own)) and len(own) > 2


def test_windows_that_do_not_overlap_are_not_said_to(tokenizer, file, tmp_path):
    report = report_of(study(tokenizer, file, lengths=(32,), mode="whole", samples=3), tmp_path)
    report.write(fake(requests(report.plan)["stock", "32"], [3.0, 3.2, 3.4]))
    assert "overlap" not in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(
    ("spans", "of"),
    [
        ([], []),
        ([("a", 1, 9), ("a", 9, 12)], [0, 1]),
        ([("a", 9, 12), ("a", 1, 10), ("b", 1, 10)], [0, 0, 1]),
        ([("a", 0, 90), ("a", 1, 9), ("a", 80, 95), ("a", 95, 99)], [0, 0, 0, 1]),
    ],
)
def test_blocks(spans, of):
    assert blocks(spans) == of
