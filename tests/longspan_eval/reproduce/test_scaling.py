"""How the papers' numbers are scaled to a window, and to how much is measured."""

from __future__ import annotations

import pytest

from longspan_eval.measure import TaskPrompt
from longspan_eval.reproduce import PAPERS
from longspan_eval.reproduce.cells import INSIDE
from longspan_eval.reproduce.measures import Inspected, SplitPrompt, Timed
from longspan_eval.reproduce.table import PaperPlan
from support.tables import figures_of, measured, table_of

K = 1024


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    ("paper", "table", "lengths", "each"),
    [
        ("longheads", "figure-4", [4096 * n for n in range(1, 9)], 50),
        ("longheads", "figure-6", [4096 * n for n in (1, 2, 4, 8, 16, 32)], 50),
        ("longheads", "figure-7", list(range(1000, 50_000, 3000)), 100),
        ("longheads", "table-3", [4096, 8192, 16_384, 32_768], 50),
        ("longheads", "table-5", [4096, 16_384, 32_768, 131_072], 50),
        ("dca", "figure-3", [n * K for n in (4, 8, 12, 16, 32, 64)], 20),
        ("dca", "figure-5", [n * K for n in range(4, 25, 2)], 200),
        ("dca", "figure-7", [n * K for n in (2, 4, 8, 16, 32, 64, 96, 128, 160, 192)], 20),
    ],
)
def test_protocols_at_the_papers_own_window(at_4096, paper, table, lengths, each):
    cells = measured(paper, table, at_4096)
    assert sorted({measure.length for cell in cells for measure in cell.measures}) == lengths
    single = [cell for cell in cells if len({measure.length for measure in cell.measures}) == 1]  # means aside
    assert {len(cell.measures) for cell in single} == {each}
    assert {type(measure) for cell in cells for measure in cell.measures} <= {TaskPrompt, SplitPrompt, Inspected, Timed}


@pytest.mark.parametrize(("paper", "table"), [(name, one.name) for name, own in PAPERS.items() for one in own.tables])
def test_every_quick_table_of_prompts_has_stock_inside_the_window(at_window, paper, table):
    session = at_window(512, scale="quick", windows=PAPERS[paper].windows)
    asked = [one for one in figures_of(paper, table, session) if isinstance(one, TaskPrompt)]
    lengths = {one.length for one in asked if one.spec.label == "stock"}
    unfit = [cell for cell in table_of(paper, table).cells(session) if cell.row == INSIDE and cell.missing]
    assert not asked or min(lengths) <= 512 or "tokens are too few" in unfit[0].missing


@pytest.mark.parametrize(("window", "tokens"), [(4096, 256), (512, 32), (1000, 62), (8, 1), (4, 1)])
def test_tokens(at_window, window, tokens):
    assert at_window(window).tokens(256, 4096) == tokens


def test_lengths_come_once(at_window):
    assert at_window(8).lengths([1000, 1200, 4096], 4096) == [2, 8]


def test_prompts_follow_scale_and_limit(at_window):
    assert [at_window(512, scale="paper").prompts(50, 4), at_window(512, scale="quick").prompts(50, 4)] == [50, 4]
    assert at_window(512, scale="paper", samples=7).prompts(50, 4) == 7
    assert at_window(512, scale="quick", samples=7).prompts(50, 4) == 4


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scale": "big"}, "paper or quick"),
        ({"scale_to": "model"}, "scaled to auto or paper or window"),
        ({"samples": 0}, "samples"),
        ({"max_length": 0}, "max_length"),
    ],
)
def test_a_session_says_what_is_wrong(at_window, more, said):
    with pytest.raises(ValueError, match=said):
        at_window(512, **more)


def test_a_missing_data_folder_is_named(at_window, tmp_path):
    with pytest.raises(ValueError, match="nowhere: this folder does not exist"):
        at_window(512, data_dir=tmp_path / "nowhere")


def test_keys_change_with_what_a_sample_depends_on(at_window):
    session, other = at_window(512, scale="quick"), at_window(1024, scale="quick")
    table = table_of("longheads", "figure-4")
    keys = set(PaperPlan(table, session).keys[0])
    assert len(keys) == 6 and not keys & set(PaperPlan(table, other).keys[0])
