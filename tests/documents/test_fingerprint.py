"""What a model's weights are known by."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from longspan.documents import fingerprint
from longspan.hf.weights import weights_hash


def test_a_weight_whose_size_fp32_rounds_up():
    """As of a layer of 4,096 by 8,192: fp32 has no 2**25 - 1, and a place of 2**25 is none."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(2**25, dtype=torch.int8), requires_grad=False)
    before = fingerprint._sample(model)
    model.weight[-1] = 1
    assert fingerprint._sample(model) != before


def test_a_user_without_a_home(fresh, monkeypatch):
    """As in a container that runs under a number: hashes are computed, and not remembered."""

    pwd = pytest.importorskip("pwd")

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert fingerprint.weights_of.func(fresh()) == weights_hash(fresh())
