"""Pictures: the map that they show, the matrix of relative positions, the files that come of it."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.attend import Choice
from longspan_eval.analysis import Chunking, pictures


def choice(units, layer=0):
    return Choice(0, layer, 0, 21, 21, torch.tensor(units), 4, 0, None, 0, ((0, 4), (16, 22)), 0)


SIX = Chunking((0, 4, 8, 12, 16, 20), 22)


def test_the_map():
    names, kept = pictures.kept_map([choice([[1], [3]]), choice([[2], [2]], layer=2)], SIX)
    assert names == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert kept.tolist() == [[1, 2, 0, 0, 1, 1], [1, 0, 0, 2, 1, 1], [1, 0, 2, 0, 1, 1], [1, 0, 2, 0, 1, 1]]


def test_figure_2_of_dual_chunks():
    """The matrix of the paper's example: chunks of 6, window 10, local window 4, 12 tokens."""
    method = longspan.DCA(chunk_size=6, local_window=4, window=10).resolve(10)
    rel, keep = pictures.relative_positions(method, 12)
    assert keep.equal(torch.ones(12, 12).tril().bool())
    assert rel[5, :6].tolist() == [5, 4, 3, 2, 1, 0]
    assert rel[6, :7].tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert rel[9].tolist()[:10] == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert rel[10].tolist()[:11] == [9, 8, 7, 6, 5, 4, 4, 3, 2, 1, 0]
    assert rel[11].tolist() == [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0]


def test_what_is_left_out_stays_out():
    _, keep = pictures.relative_positions(longspan.StreamingLLM(sinks=1, recent=2).resolve(8), 5)
    assert keep.int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]


def test_no_matrix():
    with pytest.raises(longspan.LongspanError, match="esa chooses keys"):
        pictures.relative_positions(longspan.ESA().resolve(64), 5)
    for length in (0, 5000):
        with pytest.raises(longspan.LongspanError, match="1 to 4,096 rows"):
            pictures.relative_positions(longspan.DCA().resolve(64), length)


def test_files(tmp_path):
    from matplotlib.image import imread

    pictures.draw_selection([choice([[1], [3]])], SIX, tmp_path / "a.png", title="plain")
    pictures.draw_selection([choice([[1], [3]])], SIX, tmp_path / "b.png", answers=[2], title="plain")
    plain, outlined = imread(tmp_path / "a.png")[..., :3], imread(tmp_path / "b.png")[..., :3]
    red = torch.tensor([0xD1, 0x43, 0x2B]) / 255

    def reds(image):
        return int(((torch.tensor(image) - red).abs().amax(dim=-1) < 0.02).sum())

    assert reds(plain) == 0 and reds(outlined) > 200
    for length in (12, 40):
        pictures.draw_positions(longspan.DCA().resolve(16), length, tmp_path / f"{length}.png")
        assert imread(tmp_path / f"{length}.png").std() > 0
