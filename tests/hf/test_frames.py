"""How deep a decoded token goes in Python, from the function that transformers calls to the kernels in C."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import longspan
from longspan.errors import LongspanError
from longspan.kernels import cpu
from support.hf_models import make, prompts

if cpu.unavailable_reason() is not None:
    pytest.skip(str(cpu.unavailable_reason()), allow_module_level=True)

MOST = 7
ROOT = Path(longspan.__file__).parent
METHODS = {"dca": longspan.DCA(), "longheads": longspan.LongHeads(score="bounds"), "esa": longspan.ESA()}


def stacks(call):
    """The Python functions between transformers and the library of kernels, of every call into that library."""
    found = []

    def entered(frame, event, argument):
        if event != "call" or frame.f_code.co_filename != cpu.__file__:
            return
        names = []
        while Path(frame.f_code.co_filename).is_relative_to(ROOT):
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        found.append(names[::-1])

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_decoded_token_takes_few_frames(name):
    model = make("llama")
    report = longspan.extend(model, METHODS[name])
    assert report.decode == "compiled: one C call per layer"
    with torch.no_grad():
        cache = model(prompts(1, 120)).past_key_values
        for _ in range(2):
            model(prompts(1, 1), past_key_values=cache)
        found = stacks(lambda: model(prompts(1, 1), past_key_values=cache))
    assert len(found) == len(report.attached), "a call a layer"
    assert max(map(len, found)) <= MOST, found


@pytest.mark.parametrize(
    ("family", "options", "why"),
    [
        ("llama", {"method": "infllm"}, "C has no single-token kernel"),
        ("llama", {"method": "dynamic-ntk"}, "follow the length"),
        ("llama", {"method": "dca", "impl": "torch"}, "impl='torch' is set"),
        ("hunyuan_v1_dense", {"method": "full"}, "queries or keys after rotation"),
    ],
)
def test_the_report_says_why_a_token_takes_more_calls(family, options, why):
    report = longspan.extend(make(family), **options)
    assert report.decode.startswith("separate kernels per layer: ") and why in report.decode
    assert report.decode == report.to_dict()["decode"] and "decoding" in str(report)


@pytest.mark.parametrize(
    ("method", "why"),
    [("infllm", "C has no single-token kernel"), ("longheads:score=submeans", "C has no"), ("dynamic-ntk", "length")],
)
def test_compiled_by_name_refuses_what_takes_more_calls(method, why):
    model = make("llama")
    longspan.extend(model, "dca")
    with pytest.raises(LongspanError, match=f"impl='compiled' cannot compute .* layers 0, 1 .*{why}.*leave impl out"):
        longspan.extend(model, method, impl="compiled")
    with pytest.raises(LongspanError, match="already extended"):  # what was attached stays
        longspan.inspect(model, "dca")
    assert longspan.extend(model, "dca", impl="compiled").decode == "compiled: one C call per layer"


def test_frames_are_seen():
    """What takes each part of a method by itself is deeper, and has more calls."""
    model = make("llama")
    longspan.extend(model, longspan.InfLLM())
    with torch.no_grad():
        cache = model(prompts(1, 120)).past_key_values
        found = stacks(lambda: model(prompts(1, 1), past_key_values=cache))
    assert max(map(len, found)) > MOST
