"""The script that makes the quality table: resumable after a SIGKILL, whole, and with its bars."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path

import pytest

from longspan_eval.rows import parse_rows
from longspan_eval.workers import _context

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import quality  # noqa: E402
import quality_bars  # noqa: E402
import quality_table  # noqa: E402
from samples import ARCHIVE, JOURNAL, read  # noqa: E402

PUBLISHED = BENCHMARKS / "results" / "quality"
in_the_repository = pytest.mark.skipif(
    (BENCHMARKS.parent / "PKG-INFO").exists(), reason="this is an sdist, which leaves the samples out"
)

OPTIONS = ["--rows", "stock", "dca", "dca:window=600", "--lengths", "1x,1.25", "--prompts", "6", "--workers", "1"]


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


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A table whose run was killed after a few samples, and then taken up again."""
    out = tmp_path_factory.mktemp("quality")
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
    assert quality.main([*OPTIONS, "--out", str(out)]) == 0
    assert path.read_bytes() == b""
    assert gzip.decompress((out / ARCHIVE).read_bytes()).startswith(before[: before.rfind(b"\n") + 1])
    until = time.monotonic() + 60
    while any(map(alive, workers)):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.05)
    return out


@pytest.mark.long
def test_killed_and_taken_up_again_it_has_every_sample_once(out):
    lines = [json.loads(line) for line in gzip.decompress((out / ARCHIVE).read_bytes()).splitlines()]
    keys = [line["key"] for line in lines]
    assert len(keys) == len(set(keys))
    # 2 fillers x 2 lengths x 2 rows x 6 prompts, one error for each of the four cells of the third row, and the
    # baselines: 6 prompts of depth 0 a filler, of which two are stock's own in the window
    assert len(keys) == 48 + 4 + 2 * 4
    assert sum(line["error"] is not None for line in lines) == 4


def test_the_table_is_whole(out):
    text = (out / "quality.md").read_text()
    for words in ("Passkeys found over noise", "over prose", "Perplexity of the last 256", "--prompts 6"):
        assert words in text
    assert "| `stock` | 6/6 (61-100) |" in text and "·" not in text and "…" not in text
    assert "`dca:window=600` at 1x over noise: DCA: window ≤ the model's window" in text
    assert (out / "quality.png").read_bytes()[:4] == b"\x89PNG"


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
    assert cells["stock", 1.25, "prose"]["ratio"] > 1.02 > cells["dca", 1.25, "prose"]["ratio"]
    assert body["bars"] == []  # none is for these methods and lengths


def nothing():
    yield from ()


def recorded(monkeypatch):
    """What the script would have asked."""
    asked = []

    def run(parts, *args, **more):
        asked.extend(ask for part in parts for ask in part)
        return nothing()

    monkeypatch.setattr(quality, "run", run)
    return asked


def test_nothing_is_asked_again(out, monkeypatch):
    monkeypatch.setattr(quality, "run", lambda parts, *a, **k: nothing() if not parts else pytest.fail("asked"))
    before = (out / ARCHIVE).read_bytes()
    for more in ([], ["--table-only"], ["--prompts", "2"]):
        assert quality.main([*OPTIONS, "--out", str(out), *more]) == 0
    assert quality.main([*OPTIONS, "--out", str(out), "--table-only", "--prompts", "7"]) == 3
    assert quality.main([*OPTIONS, "--out", str(out), "--dry-run"]) == 0
    assert (out / ARCHIVE).read_bytes() == before and not (out / JOURNAL).read_bytes()


def test_errors_are_asked_again_only_on_request(out, monkeypatch):
    asked = recorded(monkeypatch)
    quality.main([*OPTIONS, "--out", str(out), "--retry-errors"])
    assert {ask.row.label for ask in asked} == {"dca:window=600"} and len(asked) == 24


def test_forgetting_a_row_measures_it_anew(out, tmp_path, monkeypatch, capsys):
    (tmp_path / ARCHIVE).write_bytes((out / ARCHIVE).read_bytes())
    asked = recorded(monkeypatch)
    assert quality.main([*OPTIONS, "--out", str(tmp_path), "--forget", "dca"]) == 3
    assert {ask.row.label for ask in asked} == {"dca"} and len(asked) == 24
    assert quality.main([*OPTIONS, "--out", str(tmp_path), "--forget", "rerope"]) == 1
    assert "'rerope'" in capsys.readouterr().err
    assert len(read(tmp_path)) == 60 - 24


def test_what_an_interrupted_run_had_is_packed(out, tmp_path, monkeypatch):
    """Ctrl-C ends a run like any other: nothing stays in the journal, and the next run asks for what is left alone."""
    kept = read(out)

    def interrupted(parts, *args, **more):
        asks = [ask for part in parts for ask in part]
        yield from ((ask, kept[ask.key]) for ask in asks[:5])
        raise KeyboardInterrupt

    monkeypatch.setattr(quality, "run", interrupted)
    assert quality.main([*OPTIONS, "--out", str(tmp_path)]) == 3
    assert len(read(tmp_path)) == 5 and read(tmp_path).items() <= kept.items()
    assert (tmp_path / ARCHIVE).exists() and (tmp_path / JOURNAL).read_bytes() == b""
    asked = recorded(monkeypatch)
    quality.main([*OPTIONS, "--out", str(tmp_path)])
    keys = {ask.key for ask in asked}
    assert not keys & read(tmp_path).keys() and keys >= kept.keys() - read(tmp_path).keys()


def test_the_default_rows_are_every_method_and_parse():
    rows = parse_rows(quality_table.default_rows())
    assert {row.name for row in rows} == {"stock", *quality_table.METHODS} - set(quality_table.LEFT_OUT)
    assert quality_table.GRID == () or len(parse_rows(quality_table.GRID)) == len(quality_table.GRID)


@pytest.mark.parametrize(
    ("name", "multiple", "prompts"),
    [("stock", 8, 50), ("stock", 16, 10), ("dca", 4, 200), ("dca", 8, 50), ("dca", 64, 10), ("streaming-llm", 32, 10)],
)
def test_prompts_a_cell(name, multiple, prompts):
    assert quality_table.prompts_for(parse_rows([name])[0], multiple) == prompts


def test_selecting_rows_get_the_most_prompts(monkeypatch):
    monkeypatch.setattr(quality_table, "SELECTING", ("dca",))
    monkeypatch.setattr(quality_table, "FEATURED", ("dca:chunk_size=100",))
    rows = parse_rows(["dca:chunk_size=100", "dca:chunk_size=90", "rerope"])
    counts = [[quality_table.prompts_for(row, multiple) for multiple in (1, 16, 32, 64)] for row in rows]
    assert counts == [[200, 200, 100, 100], [50, 50, 10, 10], [50, 10, 10, 10]]


@in_the_repository
def test_the_published_samples_keep_their_keys():
    subject = quality_table.Subject.of(quality.load_bundled()[0])
    tables = [quality_table.Quality(quality.parse(args), subject) for args in ([], ["--grid"])]
    of_table, of_grid = ({ask.key for cell in table.every_cell for ask in cell.asks} for table in tables)
    kept = read(PUBLISHED)
    assert len(kept.keys() & of_table) >= 3000 and len(kept.keys() & of_grid) >= 360
    assert kept.keys() <= of_table | of_grid


@in_the_repository
def test_the_published_samples_meet_every_bar(tmp_path):
    """All bars are judged, each by its method's best row, and none is missed or left unmeasured."""
    (tmp_path / ARCHIVE).write_bytes((PUBLISHED / ARCHIVE).read_bytes())
    quality.main(["--table-only", "--out", str(tmp_path)])
    bars = json.loads((tmp_path / "quality.json").read_text())["bars"]
    assert len(bars) == len(quality_bars.BARS)
    assert all("**met**" in bar["result"] for bar in bars), bars
    assert "**Bars**" in (tmp_path / "quality.md").read_text()


@pytest.mark.parametrize(
    "bad",
    [
        ["--lengths", "0"],
        ["--lengths", "1,1"],
        ["--fillers", "music"],
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
