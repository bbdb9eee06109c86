"""A recording of torch's operations and Triton's kernels that can be replayed, as a CUDA graph would be.

What is recorded are calls on tensors with the numbers given then; a replay runs them again on the same memory. So a
number that should have changed since, or a look into a tensor, shows as it would on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from longspan.kernels.banded import triton_jit as banded
from longspan.kernels.gathered import triton_jit as gathered
from longspan.kernels.gathered import triton_jit_chunk as gathered_chunk
from longspan.kernels.gpu import primitives
from longspan.kernels.scores import triton_jit as scores
from longspan.kernels.topk import triton_jit as topk

WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item", "unique")  # for the device to be done
KERNELS = (banded, "banded"), (gathered, "by_row"), (gathered_chunk, "by_query_chunk"), (primitives, "merge")
KERNELS += (primitives, "merge_into"), (scores, "token_scores"), (topk, "topk"), (topk, "nearby")


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Callable[[], None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITS:
            raise RuntimeError(f"{name} waits for the device, which no recording can")
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        made = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
        inside = {x.untyped_storage().data_ptr() for x in given}
        if not func._schema.is_mutable and made and all(x.untyped_storage().data_ptr() in inside for x in made):
            return out  # a view, of memory that stays

        def again() -> None:
            new = [x for x in tree_flatten(func(*args, **kwargs))[0] if isinstance(x, Tensor)]
            for old, x in zip(made, new, strict=True):
                if x is not old and old.numel() and x.data_ptr() != old.data_ptr():
                    old.copy_(x)

        self.entries.append(again)
        return out

    def launch(self, kernel: Any, grid: Any) -> Callable[..., None]:
        def run(*args: Any, **kwargs: Any) -> None:
            def again() -> None:
                kernel[grid](*args, **kwargs)

            with torch.utils._python_dispatch._disable_current_modes():  # what interprets it is no part of it
                again()
            self.entries.append(again)

        return run

    @torch.inference_mode()  # what was made in it is written to
    def replay(self) -> None:
        for entry in self.entries:
            entry()


class _Kernel:
    def __init__(self, kernel: Any, tape: Tape) -> None:
        self.kernel, self.tape = kernel, tape

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.tape.launch(self.kernel, grid)


@contextmanager
def _watched(tape: Tape) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, tape:
        for module, name in KERNELS:
            patch.setattr(module, name, _Kernel(getattr(module, name), tape))
        yield


def record(run: Callable[[], Any], device: Any = None) -> tuple[Any, Callable[[], None]]:
    """In place of ``longspan.hf.graphs.record``."""
    run()  # what a first call sets up is no part of it
    tape = Tape()
    with _watched(tape):
        out = run()
    return out, tape.replay
