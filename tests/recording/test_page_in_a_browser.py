"""The page as a browser shows it; skipped where there is none."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch

from longspan.attend import Choice
from longspan.recording.chunks import Chunking
from longspan.recording.page import write_page

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
CHOSEN = torch.tensor([0x17, 0x73, 0x6B]) / 255  # the colour of what was chosen


@pytest.mark.skipif(BROWSER is None, reason="no chromium")
def test_a_screenshot_shows_what_was_chosen(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    shades = []
    for name, units in (("few", [[1]]), ("many", [[1, 2, 3]])):
        choice = Choice(0, 0, 0, 21, 21, torch.tensor(units), 4, 0, None, 0, ((0, 4), (16, 22)), 0)
        page, shot = tmp_path / f"{name}.html", tmp_path / f"{name}.png"
        write_page(
            page,
            [choice],
            Chunking((0, 4, 8, 12, 16, 20), 22),
            ["words "] * 6,
            answers=[3],
            title="title",
            kind="group",
        )
        command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=900,600"]
        subprocess.run(
            [*command, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={shot}", page.as_uri()],
            check=True,
            capture_output=True,
            timeout=60,
        )
        pixels = torch.tensor(image.imread(shot))[..., :3]
        assert pixels.shape[:2] == (600, 900)
        shades.append(int(((pixels - CHOSEN).abs().amax(dim=-1) < 0.02).sum()))
    legend, cell = (3 * shades[0] - shades[1]) / 2, (shades[1] - shades[0]) / 2
    assert cell > 50 and legend >= 0  # two more cells of that colour, and no script error in between
