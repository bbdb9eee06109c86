"""SIGKILL at random moments: there is the document of before or that of after, or none, and nothing else."""

from __future__ import annotations

import os

import pytest
import torch

from support.killed_documents import KINDS, Killing

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed(fresh, tokenizer, text, tmp_path, kills):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a child has no threads but its own
    try:
        killing = Killing(fresh, tokenizer, text, tmp_path)
        found = [killing.one(KINDS[n % len(KINDS)], n) for n in range(kills)]
    finally:
        torch.set_num_threads(threads)
    assert kills < 50 or len(set(found)) == 3, "the kills came too early or too late to say anything"
