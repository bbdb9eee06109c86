"""Free memory, and the limits of the groups that a process is in."""

from __future__ import annotations

import torch

from longspan.machine import memory
from longspan.machine.memory import memory_left


def files(root, **texts):
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


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
    free = memory.free_memory(torch.device("cpu"))
    monkeypatch.setattr(memory, "memory_left", lambda: 1000)
    assert memory.free_memory(torch.device("cpu")) == (None if free is None else 1000)
