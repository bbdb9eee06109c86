"""One rule says which implementation of a kernel runs."""

from __future__ import annotations

import pytest
import torch

from longspan.kernels.dispatch import ORDER, resolve

CPU, CUDA, OTHER = torch.device("cpu"), torch.device("cuda"), torch.device("meta")


def reasons(**said):
    """What each implementation says, and which were asked."""
    asked = []
    return {name: lambda name=name, why=why: asked.append(name) or why for name, why in said.items()}, asked


def test_auto_takes_the_first_that_can_run():
    can, asked = reasons(triton=None, compiled=None, flash_cpu=None)
    assert resolve("auto", CPU, can) == "compiled" and asked == ["compiled"], "Triton is for CUDA tensors"
    assert resolve("auto", CUDA, can) == "triton"
    assert resolve("auto", OTHER, can) == "torch"
    assert [ORDER["cuda"], ORDER["cpu"]] == [("triton",), ("compiled", "flash_cpu")]


def test_auto_goes_on_where_one_cannot_or_is_slower():
    some, asked = reasons(compiled="no compiler", flash_cpu=None)
    assert resolve("auto", CPU, some) == "flash_cpu" and asked == ["compiled", "flash_cpu"]
    assert resolve("auto", CPU, some, slower=("flash_cpu",)) == "torch"
    assert resolve("auto", CUDA, reasons(triton="no Triton")[0]) == "torch"
    assert resolve("auto", CPU, {}) == "torch"


@pytest.mark.parametrize("impl", ["torch", "reference"])
def test_what_every_kernel_has(impl):
    assert resolve(impl, CPU, {}) == impl


def test_a_named_one_runs_or_raises():
    some, _ = reasons(triton="no GPU", compiled=None)
    assert resolve("compiled", CPU, some, slower=("compiled",)) == "compiled", "what is named is not passed over"
    with pytest.raises(ValueError, match="^triton cannot run here: no GPU; use impl='torch'$"):
        resolve("triton", CPU, some)
    with pytest.raises(ValueError, match="^flash_cpu cannot run here: this kernel has no such implementation; use"):
        resolve("flash_cpu", CPU, some)
    with pytest.raises(ValueError, match="impl must be one of auto, .*, reference, not 'tiled'"):
        resolve("tiled", CPU, some)
