"""What a machine is found to have, and the limits of the groups that a process is in."""

from __future__ import annotations

import pytest
import torch

from longspan.doctor import machine
from longspan.doctor.machine import look
from longspan.hf import auto
from longspan.hf.cgroup import memory_left
from longspan.kernels import cpu


def files(root, **texts):
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


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


def test_no_groups(tmp_path):
    assert memory_left(tmp_path) is None


def test_groups_of_version_2(tmp_path):
    folder = "sys__fs__cgroup__"
    files(tmp_path, proc__self__cgroup="0::/job/step\n")
    files(tmp_path, **{f"{folder}job__step__memory_dot_max": "max\n", f"{folder}job__step__memory_dot_current": "50\n"})
    assert memory_left(tmp_path) is None
    files(
        tmp_path,
        **{
            f"{folder}job__memory_dot_max": "1000\n",
            f"{folder}job__memory_dot_current": "700\n",
            f"{folder}job__memory_dot_stat": "anon 400\ninactive_file 100\n",
        },
    )
    assert memory_left(tmp_path) == 400  # the limit of the group around it, what is cached taken for free
    files(tmp_path, **{f"{folder}job__memory_dot_current": "5000\n"})
    assert memory_left(tmp_path) == 0


def test_groups_of_version_1_in_a_container(tmp_path):
    folder = "sys__fs__cgroup__memory__"
    files(
        tmp_path,
        proc__self__cgroup="9:name=systemd:/\n4:cpu,memory:/docker/abc\n",
        **{
            f"{folder}memory_dot_limit_in_bytes": "1000\n",
            f"{folder}memory_dot_usage_in_bytes": "300\n",
            f"{folder}memory_dot_stat": "total_inactive_file 50\n",
        },
    )
    assert memory_left(tmp_path) == 750
    files(tmp_path, **{f"{folder}memory_dot_limit_in_bytes": f"{2**63 - 4096}\n"})
    assert memory_left(tmp_path) is None


def test_free_memory_is_what_a_limit_leaves(monkeypatch):
    free = auto.free_memory(torch.device("cpu"))
    monkeypatch.setattr(auto, "memory_left", lambda: 1000)
    assert auto.free_memory(torch.device("cpu")) == (None if free is None else 1000)
