"""Decoding a token at a time in both ways: all of it in one call of C, and each part in a call of its own."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import torch

from longspan.attend import Attender
from longspan.kernels import cpu
from longspan.memory import KVStore

SCALE = 0.25
PROMPT, N = 110, 140  # past the end of the tables that are computed ahead


def attender(case, step="auto", given=None):
    return Attender(case.method, case.window, calibration=given, step=step)


def feed(runs, qkv, rope, store, start, stop, **options):
    """The outputs of tokens ``start : stop``, one at a time, and how many went through one call."""
    with counted() as calls:
        outs = [
            runs(*(x[:, :, n : n + 1] for x in qkv), rope, scale=SCALE, store=store, **options)
            for n in range(start, stop)
        ]
    return torch.cat(outs, dim=2), calls["decode_attend"]


@contextmanager
def counted():
    """How often each kernel in C is called inside."""
    calls = Counter()

    def around(name, threads, run):
        calls[name] += 1
        run()

    with cpu.settings(around=around):
        yield calls


def both(case, rope, qkv, prompt=PROMPT, given=None, **options):
    """Outputs and stores of the short way and the long one, and how many tokens took the short one."""
    found = []
    for step in ("auto", "parts"):
        runs, store = attender(case, step, given), KVStore()
        if prompt:
            runs(*(x[:, :, :prompt] for x in qkv), rope, scale=SCALE, store=store, **options)
        found.append((*feed(runs, qkv, rope, store, prompt, qkv[0].shape[2], **options), store))
    (out, single, store), (other, none, longer_store) = found
    assert none == 0
    return out, other, store, longer_store, single


def assert_alike(out, other):
    """Sums in another order, rounded once instead of twice."""
    bound = 8 * torch.finfo(out.dtype).eps * max(1.0, other.abs().max().item())
    assert not out.isnan().any()
    assert (out - other).abs().max() <= bound, (out - other).abs().max().item()
