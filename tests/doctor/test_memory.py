"""Bytes by formula, beside those of real stores."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import longspan
from longspan import bundled_calibration
from longspan.bundled import load_bundled
from longspan.choosing.cost import UnitCost
from longspan.choosing.top_k_tokens import TopKTokens
from longspan.doctor.memory import LayerShape, Needs, index_bytes, needs, shapes, tiers, weights_of
from longspan.hf.attach import examine
from longspan.memory.buffer import SPARE
from longspan.methods import METHODS, LMInfinite
from support.hf_models import make, prompts

N = 600


@pytest.fixture(scope="module")
def model():
    return make("llama")


def filled(model, spec, tokens, **options):
    """What a cache takes that was filled at once, and the model's needs by formula at a length."""
    report, _, probed = examine(model, spec, **options)
    with longspan.extended(model, spec, **options), torch.no_grad():
        cache = longspan.new_cache(model)
        model(prompts(1, tokens), past_key_values=cache)
        layers = shapes(probed, report.method.stored_rotations(report.window))
        sizes, index = cache.bytes_by_tier, sum(s.index.nbytes for s in cache.stores if s.index is not None)
    calibration = options.get("calibration")
    reduced = None if calibration is None else calibration.reduced

    def at(length):
        return needs(model, report.method, layers, length=length, window=report.window, reduced=reduced)

    return sizes, index, at


SCORES = [f"longheads:score={score}" for score in ("mean", "submeans", "bounds", "token_max")]


@pytest.mark.parametrize("spec", [*METHODS, *SCORES, "lm-infinite:middle_top_k=4,from_layer=0"])
def test_keys_and_values_and_the_index(model, spec, tmp_path):
    method = longspan.methods.parse.parse_method(spec)
    for tier, options in (("device", {}), ("disk", {"kv_tier": "disk", "kv_dir": tmp_path})):
        sizes, index, at = filled(model, method, N, **options)
        assert sizes[tier] - (index if tier == "device" else 0) == at(N + SPARE).keys_and_values
        assert sizes["device"] == index + (at(N + SPARE).keys_and_values if tier == "device" else 0)
    _, few, _ = filled(model, method, 3)  # room for the last tokens' inputs, and no entry yet
    assert at(N).index <= index <= 1.5 * at(N + 64 * SPARE).index + few
    assert (at(N).index > 0) == (index > few)


def test_a_calibrated_index():
    model, _ = load_bundled()
    sizes, index, at = filled(model, "esa", N, calibration=bundled_calibration())
    assert index == at(N + SPARE).index > 0
    assert sizes["device"] == index + at(N + SPARE).keys_and_values


def test_layers_that_stay_stock():
    model = make("smollm3")
    _, _, at = filled(model, "dca", 100)
    assert at(100).stock == at(100).keys_and_values > 0
    assert weights_of(model) == sum(x.numel() * 4 for x in model.parameters()) + sum(
        x.numel() * x.element_size() for x in model.buffers()
    )


def test_each_tier_is_held_against_what_is_free_there():
    need = Needs(length=1000, weights=1, keys_and_values=8000, stock=0, index=1000, recent=0)
    device, host, disk = tiers(need, selects=True, on_gpu=False, device_free=10_000, host_free=10_000, disk_free=8000)
    assert (device.fits, device.device, device.longest) == (False, 9000, 8000 * 1000 // 9000)
    assert host.reason == "for a model on the CPU the same memory as device"
    assert (disk.fits, disk.device, disk.disk, disk.longest) == (True, 1000, 8000, 1000)
    unknown = tiers(need, selects=True, on_gpu=False, device_free=None, host_free=None, disk_free=8000)
    assert [fit.fits for fit in unknown] == [None] * 3


def test_a_gpu_keeps_recent_tokens_and_needs_a_method_that_chooses():
    need = Needs(length=1000, weights=1, keys_and_values=8000, stock=0, index=1000, recent=500)
    free = {"device_free": 2000, "host_free": 20_000, "disk_free": 100_000}
    device, host, disk = tiers(need, selects=True, on_gpu=True, **free)
    assert (device.fits, host.fits, disk.fits) == (False, True, True)
    assert (host.device, host.host) == (1500, 8000) and host.longest == (1600 - 500) * 1000 // 1000
    reasons = [fit.reason for fit in tiers(need, selects=False, on_gpu=True, **free)]
    assert reasons == [None, *["on a GPU for methods that choose keys"] * 2]
    assert [fit.reason for fit in (device, host, disk)] == [None] * 3
    tight = tiers(need, selects=True, on_gpu=True, **{**free, "device_free": 1500})  # 1,200 for 1,500
    assert [fit.fits for fit in tight] == [False] * 3


def test_what_a_gpu_keeps_are_two_windows(model):
    report, _, probed = examine(model, "longheads")
    layers = shapes(probed, report.method.stored_rotations(report.window))
    at = [
        needs(model, report.method, layers, length=N, window=report.window, on_gpu=on_gpu) for on_gpu in (False, True)
    ]
    assert at[0].recent == 0 and at[1].recent == 2 * report.window * at[1].keys_and_values // N > 0


def test_layers_that_differ_in_query_heads():
    """The config says one number for all layers, and what a layer computes is its own."""
    model = make("llama")
    attention = model.model.layers[1].self_attn
    attention.q_proj = torch.nn.Linear(64, 2 * 16, bias=False)
    attention.o_proj = torch.nn.Linear(2 * 16, 64, bias=False)
    attention.num_key_value_groups = 1
    report, _, layers = examine(model, longspan.LongHeads(share="head"))
    assert [shape.heads for shape in shapes(layers, 1)] == [4, 2]
    assert report.heads_hold == report.method.selection(report.window).budget * (4 + 2)


def test_a_selection_that_is_not_one_of_ours_states_its_own_index():
    @dataclass(frozen=True)
    class Summed(TopKTokens):
        def unit_cost(self, layer, reduced):
            return UnitCost(stored=3, read=5, products=7)

    @dataclass(frozen=True)
    class Own(LMInfinite):
        def selection(self, window):
            return Summed(**vars(super().selection(window)))

    layer = LayerShape(number=4, heads=4, kv_heads=2, key_dim=16, value_dim=8, rotations=1, itemsize=4)
    options = {"middle_top_k": 5, "from_layer": 0}
    assert index_bytes(Own(**options).resolve(64), layer, 1000, 64) == 3000
    assert index_bytes(LMInfinite(**options).resolve(64), layer, 1000, 64) == 0
