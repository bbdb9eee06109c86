"""Dual Chunk Attention's protocols: at the windows of its models they are the paper's, to the digit."""

from __future__ import annotations

import pytest

from longspan.methods import DCA
from longspan_eval.reproduce import PAPERS, dca, dca_methods
from support.tables import made, measured, table_of

K = 1024


@pytest.mark.parametrize(("window", "size"), [(4096, 3072), (8192, 6144), (32_768, 24_576)])
def test_dca_has_chunks_of_three_quarters_of_each_of_its_windows(at_window, window, size):
    session = at_window(window, windows=PAPERS["dca"].windows)
    method = made(dca_methods.method(session), DCA)
    assert (method.chunk_size, method.local_window, method.window) == (size, window - size, window)
    assert session.lengths([4 * K, 192 * K], 4096) == [4 * K, 192 * K]  # lengths are those of its tables all the same


def test_dca_rows(at_4096):
    assert [made(row, DCA).parts for name, row in dca_methods.parts(at_4096).items() if name != "stock"] == [
        "intra", "intra+inter", "all",
    ]  # fmt: skip
    assert list(dca_methods.methods(at_4096)) == ["stock", "ReRoPE", "PI", "NTK", "YaRN", "dynamic NTK", "DCA"]


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    ("paper", "table", "thousands", "windows"),
    [("dca", "table-1", (4, 8, 16, 32, 64), 4096), ("dca", "table-2", (4, 32, 64, 96, 128, 160, 192), 4096)],
)
def test_lengths_of_perplexity(at_window, monkeypatch, paper, table, thousands, windows):
    monkeypatch.setattr("longspan_eval.windows.standard_text", lambda: "word " * 300_000)
    session = at_window(windows, windows=PAPERS[paper].windows, samples=1)
    cells = [cell for cell in table_of(paper, table).cells(session) if cell.row.endswith(": stock")]
    assert [cell.column for cell in cells] == [f"{n * K:,}" for n in thousands]


def test_needles_of_mistral_are_to_192k_at_its_window(at_window, unbuilt):
    session = at_window(32_768, windows=PAPERS["dca"].windows)
    cells = measured("dca", "figure-6", session)
    assert max(one.length for cell in cells for one in cell.measures) == 192 * K
    assert {one.name for cell in cells for one in cell.measures} == {"needle"}
    assert dca.MISTRAL == 32_768
