"""A method through one kernel, held to the oracle: within the error that a plain run in the same dtype makes."""

from __future__ import annotations

from functools import lru_cache

import torch

from longspan.attend import Attender
from longspan.kernels import cpu
from longspan.oracle import oracle
from support.cases import HEAD, ROPES, assert_within_budget, eager, make_qkv, recorded

IMPLS = ("flash_cpu", "torch", "reference", *(() if cpu.unavailable_reason() else ("compiled",)))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
N = 83  # three windows and a half: rows in every chunk, none of them at a round number
SCALE = HEAD**-0.5


@lru_cache(maxsize=64)
def setting(case, dtype, chooser="auto", rope_name="half-all", kv_heads=2, dv=HEAD, softcap=None, sunk=False):
    """Inputs quantised first, then the truth from them in fp64 and a plain run in their dtype.

    Scores in a reduced dtype may choose otherwise in torch's operations than in C: ``chooser`` says whose choice it is.
    """
    q, k, v = make_qkv(N, batch=2, kv_heads=kv_heads, dv=dv, dtype=dtype)
    rope = ROPES[rope_name]()
    sinks = torch.tensor([0.5, -1.0, 2.0, 4.0], dtype=dtype) if sunk else None
    extra = {"scale": SCALE, "softcap": softcap, "sinks": sinks}
    laid = None
    if case.selects:  # the kernels are held to what was chosen here; whether that is right, test_choices asks
        laid = case.laid(recorded(case, chooser, q, k, v, rope, scale=SCALE))
    keep, rel = laid or case.dense(N)
    factor = case.method.query_factor(case.window, N)
    truth = oracle(q, k, v, keep, rel, case.rope(rope, N), query_factor=factor, **extra)
    plain = eager(case, q, k, v, rope, layout=laid, **extra)
    if dtype == torch.float32:
        # A budget taken from a wrong run would allow anything: the plain run itself is off by fp32's rounding of the
        # angles, N · eps radians at the last position, in each of a few steps, and by no more.
        assert (plain - truth).abs().max() <= 8 * N * torch.finfo(dtype).eps * truth.abs().max()
    return (q, k, v, rope), extra, truth, plain


def check(case, impl, dtype, **options):
    chooser = "torch" if case.selects and impl not in ("auto", "compiled") else "auto"
    inputs, extra, truth, plain = setting(case, dtype, chooser, **options)
    out = Attender(case.method, case.window, impl)(*inputs, **extra)
    assert out.dtype == dtype and out.shape == truth.shape
    assert_within_budget(out, plain, truth)
