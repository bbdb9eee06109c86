"""Angles in very long texts: exact beyond the window in every method, on the tables that each step reads."""

from __future__ import annotations

import pytest
import torch

from longspan.attend import Attender
from longspan.attend.tables import AHEAD
from longspan.methods import METHODS
from longspan.rope import Table

WINDOW, FAR, LIMIT = 4096, 4_000_000, 1e-3


def radians_off(angles, positions, table):
    """How far cos and sin are from the angles of ``positions``, in radians, on the circle."""
    cos, sin = angles
    phase = positions.double()[:, None] * table.inv_freq.double()
    across, along = sin.double() * phase.cos() - cos.double() * phase.sin(), cos.double() * phase.cos()
    return torch.atan2(across, along + sin.double() * phase.sin()).abs().max()


@pytest.fixture(scope="module")
def own():
    return Table(500_000.0 ** -(torch.arange(4) / 64))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method().angles.dynamic])
def test_angles_far_beyond_the_window(name, own):
    tables = Attender(METHODS[name]().reaching(FAR).resolve(WINDOW), WINDOW).tables
    table, start = tables.angles(own), FAR - FAR % AHEAD
    ahead, tokens = tables.token(table, FAR), torch.arange(start, start + AHEAD)
    for angles, to in zip(ahead.keys, tables.key_maps, strict=True):
        assert radians_off(angles, to(tokens), table) < LIMIT
    for angles, positions in zip(ahead.queries, ahead.ranges.plan.q_pos, strict=True):
        assert radians_off(angles, positions, table) < LIMIT
