"""The demonstration: what it leaves behind, what it says, and that new methods join it by themselves."""

from __future__ import annotations

import io
import json

import pytest
import typer
from rich.console import Console

from longspan.bundled import load_bundled
from longspan.cli.commands import app
from longspan.errors import LongspanError
from longspan.methods import METHODS
from longspan_eval import workers
from longspan_eval.estimate import Pace
from longspan_eval.schedule import CellPlan
from longspan_eval.studies import demo
from longspan_eval.subject import Subject


def test_every_method_is_a_row_unless_left_out_on_purpose():
    rows = demo.methods_shown()
    assert rows[0] == "stock" and {row.partition(":")[0] for row in rows[1:]} | set(demo.LEFT_OUT) == set(METHODS)
    assert set(demo.LEFT_OUT) <= set(METHODS)


def test_the_help_says_which_methods_are_left_out():
    said = typer.main.get_command(app).commands["demo"].params
    (help,) = (option.help for option in said if option.name == "methods")
    *some, last = demo.LEFT_OUT
    assert f"default: stock and all but {', '.join(some)} and {last}, with {demo.SHOWN_AS['longheads']}." in help


@pytest.mark.parametrize(
    ("prompts", "depths"),
    [(1, [0.5]), (2, [0.0, 1.0]), (5, [0, 0.25, 0.5, 0.75, 1]), (7, [0, 0.25, 0.5, 0.75, 1, 0, 0.25])],
)
def test_depths_are_spread_evenly(prompts, depths):
    assert demo.depths(prompts) == depths


def test_settings_that_cannot_be():
    for bad in ({"prompts": 0}, {"multiples": ()}, {"methods": ()}, {"methods": ("magic",)}):
        with pytest.raises(LongspanError):
            demo.DemoSettings(**bad)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    console = Console(file=io.StringIO(), width=100)
    demo.run(demo.DemoSettings(prompts=1, multiples=(1, 2), methods=("stock", "yarn", "dca")), out, console)
    return out, console.file.getvalue(), json.loads((out / "results.json").read_text())


@pytest.mark.long
def test_leaves_numbers_and_a_picture(ran):
    out, _, body = ran
    assert (out / "heatmap.png").read_bytes()[:4] == b"\x89PNG"
    assert body["model"]["window"] == 512 and len(body["model"]["sha256"]) == 64
    assert body["seed"] == 0 and body["lengths"] == [512, 1024] and body["prompts_per_cell"] == 1
    asked = 2 if demo.FACT in demo.tables() else 1
    assert len(body["cells"]) == 6 and len(body["samples"]) == 6 * asked
    assert all((cell["facts"] is not None) == (asked == 2) for cell in body["cells"])
    assert body["methods"]["yarn"]["1024"]["angles"].startswith("YaRN(factor=2")
    assert body["methods"]["dca"]["512"]["chunk_size"] == 384


@pytest.mark.long
def test_says_what_it_measured(ran):
    out, text, _ = ran
    said = ("512 tokens", "1 prompt a cell", "passkey found", "perplexity", "Pass keys beyond the window", str(out))
    for words in said:
        assert words in text.replace("\n", "") or words in text


@pytest.mark.parametrize("can", [True, False])
def test_facts_are_asked_for_where_the_model_can_answer_them(monkeypatch, can):
    monkeypatch.setattr(demo, "facts_asked", lambda: can)
    cells = demo.cells(demo.DemoSettings(prompts=3, multiples=(1, 4), methods=("stock", "dca")), 512)
    assert {cell.table for cell in cells} == {demo.FOUND, demo.SURPRISE} | ({demo.FACT} if can else set())
    keys = {demo._key(one) for cell in cells for one in cell.measures}
    assert len(keys) == 12 * (1 + can)
    assert ("plain words" in demo._facts_note()) == can


@pytest.mark.long
def test_inside_the_window_the_numbers_are_stocks(ran):
    cells = {(c["method"], c["length"]): c for c in ran[2]["cells"]}
    for method in ("yarn", "dca"):
        assert cells[method, 512]["perplexity"] == pytest.approx(cells["stock", 512]["perplexity"], rel=1e-3)


def test_samples_are_in_the_order_of_the_plan_whichever_process_is_done_first(monkeypatch):
    measured = workers.run

    def other_way_round(*args, **options):
        yield from reversed(list(measured(*args, **options)))

    monkeypatch.setattr(workers, "run", other_way_round)
    settings = demo.DemoSettings(prompts=2, multiples=(1,), methods=("stock", "dca"))
    plan = CellPlan(demo.cells(settings, 512), demo._key)
    pace = Pace(Subject.of(load_bundled()[0]))
    samples = demo.measured(plan, pace, Console(quiet=True))
    assert list(samples) == [one.key for part in plan.left({}) for one in part]


@pytest.mark.long
def test_the_seed_decides_the_prompts(tmp_path):
    runs = []
    for seed in (3, 3, 4):
        settings = demo.DemoSettings(prompts=1, multiples=(1,), methods=("dca",), seed=seed)
        demo.run(settings, tmp_path, Console(file=io.StringIO()))
        samples = json.loads((tmp_path / "results.json").read_text())["samples"]
        runs.append([(s["answer"], s["prediction"], s["loss"]) for s in samples])
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.long
def test_the_whole_demonstration_shows_what_it_is_for(tmp_path):
    demo.run(demo.DemoSettings(), tmp_path, Console(file=io.StringIO()))
    cells = {(c["method"], c["length"]): c for c in json.loads((tmp_path / "results.json").read_text())["cells"]}
    beyond = [round(512 * n) for n in demo.MULTIPLES if n > 2]
    assert sum(cells["stock", n]["found"] for n in beyond) <= 1
    assert sum(cells["dca", n]["found"] for n in beyond) > sum(cells["stock", n]["found"] for n in beyond)
