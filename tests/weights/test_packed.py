"""Matrices in codes: read without an error, rounded with the least one, and multiplied as their numbers are."""

from __future__ import annotations

import copy

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

import longspan
from longspan.kernels import cpu
from longspan.kernels.linear import linear
from longspan.kernels.linear.contract import PackedMatrix
from longspan.weights.blocks import packed_blocks
from longspan.weights.modules import PackedEmbedding, PackedLinear
from longspan.weights.rounding import rounded

SCALES = {  # where a block has fp16 numbers
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip


def blocks(kind, rows=6, width=512):
    rng = np.random.default_rng(0)
    each, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    found = rng.integers(0, 256, (rows, width // each, size), dtype=np.uint8)
    for at in SCALES[kind]:
        found[:, :, at : at + 2] = rng.normal(0, 0.01, (rows, width // each, 1)).astype(np.float16).view(np.uint8)
    return found.reshape(rows, -1)


def matrix(bits, outs=70, width=192, group=32, dtype=torch.float16, minima=True):
    torch.manual_seed(0)
    codes = torch.randint(0, 256, (outs, width * bits // 8), dtype=torch.uint8)
    scales, least = (torch.randn(outs, width // group).mul(0.1).to(dtype) for _ in range(2))
    return PackedMatrix(codes if bits == 4 else codes.view(torch.int8), scales, least if minima else None)


@pytest.mark.parametrize("kind", SCALES)
def test_blocks_are_read_to_the_bit(kind):
    found = packed_blocks(blocks(kind), kind)
    assert np.array_equal(found.numbers().numpy(), gguf.dequantize(blocks(kind), Kind[kind]))
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    assert torch.equal(found.permuted(order).numbers(), found.numbers()[order])
    assert torch.equal(found.numbers(rows=order), found.numbers()[order])


@pytest.mark.parametrize("kind", ["IQ4_NL", "Q2_K", "F16"])
def test_other_blocks_are_left_to_the_caller(kind):
    assert packed_blocks(np.zeros((2, 84), np.uint8), kind) is None


def test_eight_bits_are_off_by_half_a_step():
    torch.manual_seed(0)
    x = torch.randn(100, 320) * torch.logspace(-3, 1, 100)[:, None]
    x[3, :32] = 0
    error = (rounded(x, 8).numbers() - x).abs().unflatten(1, (-1, 32))
    largest = x.abs().unflatten(1, (-1, 32)).amax(dim=2, keepdim=True)
    # A scale in fp16 is off by 2**-11 of it, so the largest number by as much.
    assert bool((error <= largest / 254 + largest * 2**-11).all())


def test_four_bits_beat_the_range_of_each_group():
    torch.manual_seed(0)
    x = torch.randn(64, 512)
    low, high = (each(x.unflatten(1, (-1, 32)), dim=2, keepdim=True) for each in (torch.amin, torch.amax))
    step = (high - low) / 15
    plain = ((x.unflatten(1, (-1, 32)) - low) / step).round() * step + low
    assert (rounded(x, 4).numbers() - x).square().mean() < 0.9 * (plain.flatten(1) - x).square().mean()
    exact = torch.randint(0, 16, (8, 64)).float() * 0.5 - 3
    exact[:, ::32], exact[:, 1::32] = -3, 4.5
    assert torch.equal(rounded(exact, 4).numbers(), exact)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
@pytest.mark.parametrize("bits", [4, 8])
def test_what_codes_cannot_hold_is_refused(bits, value):
    x = torch.ones(2, 32)
    x[1, 3] = value * (1 if bits == 4 else 100)
    with pytest.raises(longspan.LongspanError, match="NaN"):
        rounded(x, bits)


SHAPES = {
    "4 bits": {"bits": 4},
    "4 bits, fp32": {"bits": 4, "dtype": torch.float32},
    "8 bits": {"bits": 8, "minima": False},
    "8 bits, minima": {"bits": 8, "outs": 1},
    "8 bits, groups of 16": {"bits": 8, "group": 16, "width": 48, "dtype": torch.float32, "minima": False},
    "wide": {"bits": 4, "width": 32 * 70, "outs": 33},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 17, 40])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("impl", ["auto", "torch"])
def test_products_are_those_of_the_numbers(shape, rows, dtype, impl):
    w = matrix(**SHAPES[shape])
    x, bias = torch.randn(rows, w.shape[1]).to(dtype), torch.randn(w.shape[0]).to(dtype)
    truth = x.double() @ w.numbers(torch.float64).T + bias.double()
    budget = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype] * truth.abs().max()
    found = linear(x, w, bias, impl=impl)
    assert found.dtype == dtype and (found.double() - truth).abs().max() <= budget


@pytest.mark.parametrize("rows", [16, 17, 40])
@pytest.mark.parametrize("impl", ["auto", "torch"])
def test_many_rows_may_be_multiplied_in_a_narrower_dtype(rows, impl):
    w = matrix(4, outs=30_000)  # of more than one part
    x, bias = torch.randn(rows, w.shape[1]), torch.randn(w.shape[0])
    exact, found = linear(x, w, bias, impl=impl), linear(x, w, bias, torch.bfloat16, impl=impl)
    low = x.bfloat16() @ w.numbers(torch.bfloat16).T
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact if rows <= 16 else low.float() + bias, rtol=1e-5, atol=1e-5)
    wide = x.bfloat16()
    assert torch.equal(linear(wide, w, bias, torch.bfloat16, impl=impl), linear(wide, w, bias, impl=impl))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_the_same_beside_others(shape, threads):
    """A request's answer must not depend on those that are answered with it."""
    if cpu.unavailable_reason() is not None:
        pytest.skip("no compiler")
    w = matrix(**SHAPES[shape])
    x = torch.randn(16, w.shape[1])
    with cpu.settings(numbers_per_thread=1 if threads > 1 else 2**40):
        together = linear(x, w)
        for count in (1, 2, 3):
            assert torch.equal(linear(x[:count], w), together[:count])


def test_gradients_pass_through():
    w = matrix(4)
    x = torch.randn(3, w.shape[1], requires_grad=True)
    linear(x, w).sum().backward()
    torch.testing.assert_close(x.grad, w.numbers().sum(dim=0).expand(3, -1))


def test_modules_follow_the_model():
    """Its dtype and its copies; codes and scales are never cast."""
    w = matrix(4)
    model = torch.nn.Sequential(PackedEmbedding(w, torch.float32), PackedLinear(w, torch.nn.Parameter(torch.ones(70))))
    model[1].share(model[0])
    ids = torch.tensor([[3, 5]])
    wanted = model(ids)
    assert wanted.shape == (1, 2, 70) and model[0](ids).equal(w.numbers()[[3, 5]][None])
    twin = copy.deepcopy(model)
    assert twin(ids).equal(wanted) and twin[1].matrix.codes.data_ptr() != w.codes.data_ptr()
    assert model.bfloat16()(ids).dtype == torch.bfloat16
    assert model.float()[0](ids).equal(w.numbers()[[3, 5]][None])
    assert {x.dtype for x in model.parameters()} == {torch.uint8, torch.int16, torch.float32}
    other = torch.nn.Sequential(PackedEmbedding(matrix(4), torch.float32), PackedLinear(matrix(4)))
    other[1].bias = torch.nn.Parameter(torch.zeros(70))
    other.load_state_dict(model.state_dict())
    assert other(ids).equal(wanted)


@pytest.mark.parametrize("rows", [3, 20])
def test_defaults_of_torch_change_nothing(rows):
    """Its default dtype and device are the user's, and C writes into what is allocated."""
    w = matrix(4)
    x = torch.randn(rows, w.shape[1])
    wanted = linear(x, w)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(linear(x, w), wanted)
        with torch.device("meta"):
            assert torch.equal(linear(x, w), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("rows", [3, 20])
def test_a_bias_of_another_dtype(rows):
    """As under autocast."""
    w, x = matrix(4), torch.randn(rows, 192).bfloat16()
    bias = torch.randn(2 * w.shape[0])[::2]
    assert torch.equal(linear(x, w, bias), linear(x, w, bias.bfloat16().contiguous()))


def test_rows_of_more_groups_than_the_kernel_has_room_for():
    w = matrix(8, outs=2, width=16 * 2049, group=16, minima=False)
    x = torch.randn(1, w.shape[1])
    torch.testing.assert_close(linear(x, w), x @ w.numbers().T)


def test_what_is_no_number_or_no_token():
    w = matrix(4)
    with pytest.raises(TypeError, match="codes"):
        linear(torch.ones(1, w.shape[1], dtype=torch.int8), w)
    with pytest.raises(IndexError):
        PackedEmbedding(w, torch.float32)(torch.tensor([-1]))


def test_small_weights_have_scales_of_all_digits():
    torch.manual_seed(0)
    x = torch.randn(16, 64) * 1e-6
    for bits, error in ((8, 0.01), (4, 0.15)):
        assert (rounded(x, bits).numbers() - x).abs().max() < error * x.abs().max()
