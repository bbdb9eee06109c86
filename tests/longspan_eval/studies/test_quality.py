"""The script that makes the quality table: resumable after a SIGKILL, and whole."""

from __future__ import annotations

import json
import lzma
import math
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest

from longspan.bundled import card
from longspan_eval.spec import parse_specs
from longspan_eval.tasks import TASKS
from longspan_eval.workers import _context

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import quality  # noqa: E402
import quality_table  # noqa: E402
from samples import ARCHIVES, JOURNAL, read  # noqa: E402

PUBLISHED = BENCHMARKS / "results" / "quality"
in_the_repository = pytest.mark.skipif(
    (BENCHMARKS.parent / "PKG-INFO").exists(), reason="this is an sdist, which leaves the samples out"
)

OPTIONS = ["--rows", "stock", "dca", "dca:window=600", "--lengths", "1x,1.25", "--prompts", "6", "--workers", "1"]
OPTIONS += ["--tasks", "key-value"]


def siblings(pid):
    """The other processes that the parent of a process has started; none where the system does not say."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return []
    parent = stat.read_text().rpartition(")")[2].split()[1]
    started = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(other) for other in started if int(other) != pid]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def killed(out):
    """Begin a table and kill the run after a few samples; what it had written, and its workers."""
    path = out / JOURNAL
    process = _context().Process(target=quality.main, args=([*OPTIONS, "--out", str(out)],))
    process.start()
    until = time.monotonic() + 120
    while time.monotonic() < until and (not path.exists() or path.read_bytes().count(b"\n") < 3):
        time.sleep(0.01)
    workers = siblings(process.pid)  # one clean process starts them all
    process.kill()
    process.join()
    before = path.read_bytes()
    assert 3 <= before.count(b"\n") < 30, "it was to be killed in the middle"
    return before, workers


def packed(out):
    """The lines of all archives."""
    return [line for path in sorted(out.glob(ARCHIVES)) for line in lzma.decompress(path.read_bytes()).splitlines()]


def copy(out, target):
    """The archives of one folder, in another."""
    for path in out.glob(ARCHIVES):
        (target / path.name).write_bytes(path.read_bytes())


@pytest.fixture(scope="module", autouse=True)
def as_quick_as_others():
    """The script lowers its priority, which a process cannot raise again: later tests of it would be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.nice", lambda by: 0)
        yield


@pytest.fixture(scope="module", params=[pytest.param(how, marks=pytest.mark.long) for how in ("at once", "killed")])
def out(request, tmp_path_factory):
    """A table, made at once; and one whose run was killed after a few samples, and then taken up again."""
    out = tmp_path_factory.mktemp("quality")
    before, workers = killed(out) if request.param == "killed" else (b"", [])
    assert quality.main([*OPTIONS, "--out", str(out)]) == 0
    assert (out / JOURNAL).read_bytes() == b""
    assert set(before[: before.rfind(b"\n") + 1].splitlines()) <= set(packed(out))
    until = time.monotonic() + 60
    while any(map(alive, workers)):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.05)
    return out


@pytest.mark.long
def test_it_has_every_sample_once(out):
    lines = [json.loads(line) for line in packed(out)]
    keys = [line["key"] for line in lines]
    assert len(keys) == len(set(keys))
    # 2 fillers and a task x 2 lengths x 2 rows x 6 prompts, one error for each of the six cells of the third row, and
    # the baselines: 6 prompts of depth 0 a filler, of which two are stock's own in the window
    assert len(keys) == 72 + 6 + 2 * 4
    assert sum(line["error"] is not None for line in lines) == 6


def test_the_table_is_whole(out):
    text = (out / "quality.md").read_text()
    for words in (
        "Passkeys found over noise",
        "over prose",
        "**key-value**",
        "Perplexity of the last 256",
        "--prompts 6",
    ):
        assert words in text
    assert "| `stock` | 6/6 (61-100) |" in text and "·" not in text and "…" not in text
    assert "`dca:window=600` at 1x over noise: DCA: window ≤ the model's window" in text
    assert (out / "quality.png").read_bytes()[:4] == b"\x89PNG"


def ratio(out, row, multiple):
    """What the samples say of prose: the perplexity over that of the same tokens in the baseline's prompts."""
    table = quality_table.Quality(quality.parse(OPTIONS), quality_table.Subject.of(quality.load_bundled()[0]))
    places = {(cell.table, cell.row, cell.column): n for n, cell in enumerate(table.plan.cells)}
    own, base = (
        {one.seed: one.loss for one in table.plan.measured(places[place], read(out)) if one.scored == 256}
        for place in (
            (quality_table.perplexity_of("prose"), row, f"{multiple:g}x"),
            ("baseline over prose", "stock", "1x"),
        )
    )
    assert len(own) >= 4
    return math.exp(fmean(own[seed] - base[seed] for seed in own if seed in base))


def test_the_json_says_what_was_measured_and_how(out):
    body = json.loads((out / "quality.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert body["model"]["window"] == 512 and len(body["model"]["sha256"]) == 64
    assert body["task"] == {"name": "passkey", "version": 2, "scored_tokens": 256, "depths": [0, 0.25, 0.5, 0.75, 1]}
    assert body["rows"]["dca"]["1.25x"]["chunk_size"] == 384 and {"torch", "threads"} <= body["environment"].keys()
    cells = {(c["row"], c["multiple"], c["filler"]): c for c in body["cells"]}
    assert len(cells) == 12
    one = cells["stock", 1.0, "prose"]
    assert (one["n"], one["found"], one["length"]) == (6, 6, 512) and one["interval"][0] == pytest.approx(
        0.6097, abs=1e-3
    )
    # In the window DCA is the stock model, and the baseline differs in the passkey's place alone.
    assert cells["dca", 1.0, "prose"]["ratio"] == pytest.approx(one["ratio"], rel=1e-4) == pytest.approx(1, abs=0.02)
    # Over noise the ratio depends on where the key lies, in the window as beyond it: what the length does is the rest.
    grown = {row: cells[row, 1.25, "noise"]["ratio"] / cells[row, 1.0, "noise"]["ratio"] for row in ("stock", "dca")}
    assert grown["stock"] > 1.02 > grown["dca"]
    for row, multiple in (("stock", 1.0), ("stock", 1.25), ("dca", 1.25)):
        assert cells[row, multiple, "prose"]["ratio"] == pytest.approx(ratio(out, row, multiple), rel=1e-5)
    tasks = {(c["task"], c["row"], c["multiple"]): c for c in body["tasks"]}
    assert len(tasks) == 6 and tasks["key-value", "dca", 1.25]["n"] == 6
    assert 0 <= tasks["key-value", "dca", 1.0]["score"] == tasks["key-value", "stock", 1.0]["score"] <= 1


def recorded(monkeypatch, answers=None):
    """What the script would have measured; ``answers``: samples by key, of the first five of which it measures."""
    asked = []

    def run(parts, **more):
        requests = [request for part in parts for request in part]
        asked.extend(requests)
        if answers is not None:
            yield from ((request, answers[request.key]) for request in requests[:5])
            raise KeyboardInterrupt

    monkeypatch.setattr(quality.workers, "run", run)
    return asked


def rows(asked):
    return {request.measure.spec.label for request in asked}


def test_nothing_is_asked_again(out, monkeypatch):
    asked = recorded(monkeypatch)
    before = packed(out)
    for more in ([], ["--table-only"], ["--prompts", "2"]):
        assert quality.main([*OPTIONS, "--out", str(out), *more]) == 0
    assert quality.main([*OPTIONS, "--out", str(out), "--table-only", "--prompts", "7"]) == 3
    assert quality.main([*OPTIONS, "--out", str(out), "--dry-run"]) == 0
    assert packed(out) == before and not (out / JOURNAL).read_bytes() and not asked


def test_errors_are_asked_again_only_on_request(out, monkeypatch):
    asked = recorded(monkeypatch)
    quality.main([*OPTIONS, "--out", str(out), "--retry-errors"])
    assert rows(asked) == {"dca:window=600"} and len(asked) == 36


def test_forgetting_a_row_measures_it_anew(out, tmp_path, monkeypatch, capsys):
    copy(out, tmp_path)
    asked = recorded(monkeypatch)
    assert quality.main([*OPTIONS, "--out", str(tmp_path), "--forget", "dca"]) == 3
    assert rows(asked) == {"dca"} and len(asked) == 36
    assert quality.main([*OPTIONS, "--out", str(tmp_path), "--forget", "rerope"]) == 1
    assert "'rerope'" in capsys.readouterr().err
    assert len(read(tmp_path)) == 86 - 36


def test_what_an_interrupted_run_had_is_packed(out, tmp_path, monkeypatch):
    """Ctrl-C ends a run like any other: nothing stays in the journal, and the next run measures what is left alone."""
    kept = read(out)
    recorded(monkeypatch, kept)
    assert quality.main([*OPTIONS, "--out", str(tmp_path)]) == 3
    assert len(read(tmp_path)) == 5 and read(tmp_path).items() <= kept.items()
    assert len(packed(tmp_path)) == 5 and (tmp_path / JOURNAL).read_bytes() == b""
    asked = recorded(monkeypatch)
    quality.main([*OPTIONS, "--out", str(tmp_path)])
    keys = {request.key for request in asked}
    assert not keys & read(tmp_path).keys() and keys >= kept.keys() - read(tmp_path).keys()


SUBJECT = quality_table.Subject(512, "a" * 64)


def planned(*args, subject=SUBJECT):
    return quality_table.Quality(
        quality.parse(["--prompts", "7", "--lengths", "4", "--fillers", "noise", "--tasks", "", *args]), subject
    )


def prompts(*args, **more):
    """The prompts of passkeys of one row, and their keys."""
    table = planned(*args, **more)
    n = next(n for n, cell in enumerate(table.plan.cells) if cell.table.startswith("Passkeys"))
    return table.plan.cells[n].measures, table.plan.keys[n]


CHANGES = {
    "length": ["--lengths", "8"],
    "filler": ["--fillers", "prose"],
    "seed": ["--seed", "100"],
    "method": ["--rows", "rerope"],
    "a parameter": ["--rows", "dca:chunk_size=100"],
    "an angle": ["--rows", "dca:angles=yarn"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_changes_with(change):
    assert not set(prompts("--rows", "dca")[1]) & set(prompts("--rows", "dca", *CHANGES[change])[1])


def test_a_key_changes_with_the_model_and_not_with_the_number_of_prompts(monkeypatch):
    before = prompts("--rows", "dca")[1]
    other = quality_table.Subject(512, "b" * 64)
    assert not set(before) & set(prompts("--rows", "dca", subject=other)[1])
    assert prompts("--rows", "dca", "--prompts", "60")[1][:7] == before
    monkeypatch.setattr(quality_table, "TARGETS", 128)
    assert not set(before) & set(prompts("--rows", "dca")[1])


def test_depths_come_in_turn():
    measures, _ = prompts("--rows", "dca", "--seed", "5")
    assert [one.depth for one in measures] == [0, 0.25, 0.5, 0.75, 1, 0, 0.25]
    assert [one.seed for one in measures] == list(range(5, 12)) and {one.length for one in measures} == {2048}


def test_the_default_rows_are_every_method_and_parse():
    specs = parse_specs(quality_table.default_rows())
    assert {spec.name for spec in specs} == {"stock", *quality_table.METHODS} - set(quality_table.LEFT_OUT)
    assert quality_table.GRID == () or len(parse_specs(quality_table.GRID)) == len(quality_table.GRID)


def test_the_default_tasks_are_what_the_card_allows():
    figures = card()["tasks"]
    asked = {"passkey", "passkey-prose", *quality_table.default_tasks()}
    assert {name for name in asked if name in figures} == {
        name for name, figure in figures.items() if figure["score"] >= 0.8 and name in TASKS
    }


def test_a_task_has_samples_of_its_own_and_waits_for_one_line():
    table = planned("--rows", "dca", "--tasks", "facts,ruler-niah-single-1,common-words")
    cells = {cell.table: n for n, cell in enumerate(table.plan.cells)}
    keys = [key for name in ("facts", "ruler-niah-single-1", "common-words") for key in table.plan.keys[cells[name]]]
    assert len(set(keys)) == 21 and not set(keys) & set(prompts("--rows", "dca")[1])
    for name in ("facts", "ruler-niah-single-1"):
        measures = table.plan.cells[cells[name]].measures
        assert [one.depth for one in measures] == [0, 0.25, 0.5, 0.75, 1, 0, 0.25]
        assert measures[0].task.until(" 1234567.\n") and not measures[0].task.until(" 1234567.")
    assert {one.depth for one in table.plan.cells[cells["common-words"]].measures} == {None}


@pytest.mark.parametrize(
    ("name", "multiple", "prompts"),
    [("stock", 16, 100), ("stock", 32, 10), ("dca", 64, 10), ("streaming-llm", 32, 50), ("esa:share=group", 64, 50)],
)
def test_prompts_a_cell(name, multiple, prompts):
    assert quality_table.prompts_for(parse_specs([name])[0], multiple) == prompts


def test_every_cell_is_asked_a_little_before_any_is_asked_much():
    table = quality_table.Quality(quality.parse(["--tasks", "facts", "--fillers", "noise"]), SUBJECT)
    parts = table.plan.left({}, rank=table.rank)
    sizes = [len(part) for part in parts if table.multiple(table.plan.cells[part[0].cell]) <= 16]
    assert table.plan.cells[parts[0][0].cell].row == "stock"
    rest = sizes[sum(part[0].measure.spec.name == "stock" and part[0].measure.length == 512 for part in parts) :]
    assert rest.index(40) > 2 * 4 * len(table.specs)


@pytest.mark.long
@in_the_repository
def test_the_published_samples_keep_their_keys():
    subject = quality_table.Subject.of(quality.load_bundled()[0])
    table = quality_table.Quality(quality.parse([]), subject)
    assert json.loads((PUBLISHED / "quality.json").read_text())["model"]["sha256"] == subject.sha256
    assert len(read(PUBLISHED).keys() & {key for keys in table.plan.keys for key in keys}) >= 500


@pytest.mark.parametrize(
    ("method", "multiple", "noise", "prose"),
    [("longheads", 16, 0.95, 0.9), ("esa", 16, 0.95, 0.9), ("longheads", 64, 0.8, 0.8), ("dca", 4, 0.9, 0.8)],
)
def test_the_best_row_of_a_method_finds_what_it_found(method, multiple, noise, prose):
    cells = json.loads((PUBLISHED / "quality.json").read_text())["cells"]
    own = [cell for cell in cells if cell["row"].partition(":")[0] == method and cell["multiple"] == multiple]
    for filler, least in (("noise", noise), ("prose", prose)):
        assert max(cell["rate"] for cell in own if cell["filler"] == filler and cell["n"] >= 50) >= least


@pytest.mark.parametrize(
    "bad",
    [
        ["--lengths", "0"],
        ["--lengths", "1,1"],
        ["--fillers", "music"],
        ["--tasks", "facts,facts"],
        ["--tasks", "music"],
        ["--workers", "0"],
        ["--prompts", "-1"],
        ["--grid", "--forget", "dca", "--table-only"],
    ],
)
def test_options_that_cannot_be(bad, capsys):
    with pytest.raises(SystemExit):
        quality.parse(bad)
    assert "error" in capsys.readouterr().err


def test_a_row_that_cannot_be_is_one_line(tmp_path, capsys):
    assert quality.main(["--rows", "magic", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("quality: error: unknown method 'magic'")
