"""One rule says which implementation of a kernel runs, and backends of others join it."""

from __future__ import annotations

import pytest
import torch

from longspan.kernels import backends, dispatch
from longspan.kernels.banded import BANDED
from longspan.kernels.dispatch import Backend, Implementation, Kernel, check_impl, considered, register, runs_in_c
from longspan.kernels.gathered import GATHERED
from longspan.kernels.scores import PRODUCTS, REPRESENTATIONS, TOKEN_SCORES
from longspan.kernels.topk import TOPK

CPU, CUDA, OTHER = torch.device("cpu"), torch.device("cuda"), torch.device("meta")
KERNELS = BANDED, GATHERED, TOPK, PRODUCTS, TOKEN_SCORES, REPRESENTATIONS


def kernel(slower=(), **said):
    """A kernel whose implementations give these reasons, and those that were asked."""
    asked = []

    def one(name, why):
        own = dispatch.BACKENDS[name]
        return Implementation(own, lambda: name, lambda: asked.append(name) or why, lambda: name in slower)

    return Kernel(*(one(name, why) for name, why in {**said, "torch": None, "reference": None}.items())), asked


def test_auto_takes_the_first_that_can_run():
    can, asked = kernel(flash_cpu=None, compiled=None, triton=None)
    assert can.choose("auto", CPU).run() == "compiled" and asked == ["compiled"], "Triton is for CUDA tensors"
    assert can.choose("auto", CUDA).run() == "triton"
    assert can.choose("auto", OTHER).run() == "torch"


def test_auto_goes_on_if_one_cannot_or_is_slower():
    some, asked = kernel(compiled="no compiler", flash_cpu=None)
    assert some.choose("auto", CPU).run() == "flash_cpu" and asked == ["compiled", "flash_cpu"]
    assert kernel(compiled="no compiler", flash_cpu=None, slower=("flash_cpu",))[0].choose("auto", CPU).run() == "torch"
    assert kernel(triton="no Triton")[0].choose("auto", CUDA).run() == "torch"
    assert kernel()[0].choose("auto", CPU).run() == "torch"


@pytest.mark.parametrize("impl", ["torch", "reference"])
@pytest.mark.parametrize("own", KERNELS)
def test_implementations_that_every_kernel_has(own, impl):
    assert own.choose(impl, CPU).backend.name == impl


def test_a_named_one_runs_or_raises():
    some, _ = kernel(triton="no GPU", compiled=None, slower=("compiled",))
    assert some.choose("compiled", CPU).run() == "compiled", "a named one is not passed over"
    with pytest.raises(ValueError, match="^triton cannot run here: no GPU; use impl='torch'$"):
        some.choose("triton", CPU)
    with pytest.raises(ValueError, match="^flash_cpu cannot run here: this kernel has no such implementation; use"):
        some.choose("flash_cpu", CPU)
    for check in (lambda: some.choose("tiled", CPU), lambda: check_impl("tiled")):
        with pytest.raises(ValueError, match="impl must be one of auto, .*, reference, not 'tiled'"):
            check()


def test_which_backends_are_considered():
    assert considered("auto", CPU) == [backends.COMPILED, backends.FLASH_CPU, backends.TORCH]
    assert considered("auto", CUDA) == [backends.TRITON, backends.TORCH]
    assert considered("reference", CPU) == [backends.REFERENCE]
    assert runs_in_c("auto") and runs_in_c("compiled") and not runs_in_c("torch")


def test_a_backend_of_another_package(monkeypatch):
    """Two files: the backend with its implementations, and the import of it."""
    monkeypatch.setattr(dispatch, "BACKENDS", dict(dispatch.BACKENDS))
    other = register(Backend("other", "meta", title="kernels of others"))
    monkeypatch.setattr(BANDED, "implementations", dict(BANDED.implementations))
    BANDED.register(Implementation(other, lambda job: job))
    assert BANDED.choose("auto", OTHER).run("job") == "job" == BANDED.choose("other", CPU).run("job")
    with pytest.raises(ValueError, match="other cannot run here: this kernel has no such implementation"):
        TOPK.choose("other", CPU)
    with pytest.raises(ValueError, match="there is a backend 'other'"):
        register(Backend("other", None))
