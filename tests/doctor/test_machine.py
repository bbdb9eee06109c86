"""What a machine is found to have."""

from __future__ import annotations

import pytest
import torch

from longspan.doctor import machine
from longspan.doctor.machine import look
from longspan.kernels import cpu


def test_this_machine(tmp_path):
    found = look(tmp_path)
    assert found.cores >= 1 and found.threads == torch.get_num_threads() and found.disk_free > 0
    assert found.disk == str(tmp_path.resolve())
    assert [kind.name for kind in found.kernels if kind.run][-1] == "of torch's operations"


def test_kernels_that_do_not_run_say_why(monkeypatch):
    with cpu.disabled():
        compiled, triton, torchs = look().kernels
    assert not compiled.run and "leave it out" not in compiled.said and compiled.said
    assert triton.run or triton.said
    assert torchs.run


def test_a_folder_in_memory(monkeypatch):
    monkeypatch.setattr(machine, "file_system", lambda folder: "tmpfs")
    assert look().disk_in_memory


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        look(tmp_path / "no")
