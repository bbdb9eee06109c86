"""What a model's weights are known by."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from longspan.documents import fingerprint
from longspan.model.weights import weights_hash


def test_a_weight_whose_size_fp32_rounds_up():
    """As of a layer of 4,096 by 8,192: fp32 has no 2**25 - 1, and a place of 2**25 is none."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(2**25, dtype=torch.int8), requires_grad=False)
    before = fingerprint._sample(model)
    model.weight[-1] = 1
    assert fingerprint._sample(model) != before


def test_the_last_hashes_are_remembered(fresh, tmp_path, monkeypatch):
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({str(n): "another's" for n in range(70)}))
    made = fingerprint.weights_of.func(fresh(), path)
    assert made == weights_hash(fresh())
    known = json.loads(path.read_text())
    assert len(known) == 64 and list(known.values())[-1] == made and "69" in known
    monkeypatch.setattr(fingerprint, "weights_hash", lambda model: "computed")
    assert fingerprint.weights_of.func(fresh(), path) == made
    changed = fresh()
    torch.nn.init.zeros_(changed.lm_head.weight)
    assert fingerprint.weights_of.func(changed, path) == "computed"
    assert json.loads(path.read_text()) == known, "weights that are in no file are not remembered"


def test_a_user_without_a_home(fresh, monkeypatch):
    """As in a container that runs under a number: hashes are computed, and not remembered."""
    pwd = pytest.importorskip("pwd")

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert fingerprint.weights_of.func(fresh()) == weights_hash(fresh())
