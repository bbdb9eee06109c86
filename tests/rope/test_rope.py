"""Angles equal transformers' own, and the rotation is the one that each layout means."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from longspan.rope import NTK, PI, Angles, DynamicNTK, Rope, Table, YaRN, rotate
from longspan.rope.angles import phases
from support.cases import HEAD, assert_same, inv_freq, make_qkv

WINDOW = 512
SIZES = [(64, 10_000.0), (128, 500_000.0), (16, 10_000.0)]


def stock(size, base, **parameters):
    rope = {"rope_type": "default", "rope_theta": base, **parameters}
    config = LlamaConfig(
        hidden_size=2 * size, num_attention_heads=2, head_dim=size, max_position_embeddings=WINDOW, rope_parameters=rope
    )
    return LlamaRotaryEmbedding(config)


def both(rotary, table, n):
    """cos and sin of the first ``n`` positions: transformers' (first half of the channels) and ours."""
    positions = torch.arange(n)
    theirs = rotary(torch.zeros(1), positions[None])
    size = rotary.inv_freq.numel()
    return [x[0, :, :size] for x in theirs], table(positions)


def assert_angles(rotary, table, n):
    theirs, ours = both(rotary, table, n)
    # One rounding of a frequency moves the last position's phase by n · eps radians.
    bound = 4 * n * torch.finfo(torch.float32).eps
    for a, b in zip(theirs, ours, strict=True):
        assert (a - b).abs().max() <= bound


def plain(size, base):
    return Table(stock(size, base).inv_freq)


@pytest.mark.parametrize(("size", "base"), SIZES)
def test_own_angles_to_the_bit(size, base):
    theirs, ours = both(stock(size, base), plain(size, base), 3000)
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))


EVERY = [Angles(), PI(4.0), NTK(4.0), DynamicNTK(4.0), YaRN(4.0)]


@pytest.mark.parametrize("angles", EVERY, ids=lambda angles: type(angles).__name__)
def test_inside_the_window_angles_are_fp32_products_to_the_bit(angles):
    table = angles.resolve(WINDOW).table(plain(128, 500_000.0), WINDOW, 2 * WINDOW)
    phase = torch.arange(WINDOW).float()[:, None] * table.inv_freq
    for n in (WINDOW // 2, 2 * WINDOW):  # growing over the border changes nothing before it
        cos, sin = (x[:WINDOW] for x in table(slice(0, n)))
        assert torch.equal(cos, phase[: len(cos)].cos() * table.factor)
        assert torch.equal(sin, phase[: len(sin)].sin() * table.factor)


def test_inside_the_window_own_angles_are_transformers_to_the_bit():
    rotary = stock(128, 500_000.0)
    theirs, ours = both(rotary, Angles().table(Table(rotary.inv_freq), WINDOW, 2 * WINDOW), WINDOW)
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))


def radians_off(cos, sin, positions, freq):
    """How far angles are from ``positions`` ``[n]`` times ``freq``, in radians, on the circle."""
    off = torch.atan2(sin.double(), cos.double()) - positions.double()[:, None] * freq.double()
    return (off - (off / (2 * math.pi)).round() * 2 * math.pi).abs().max()


@pytest.mark.parametrize("angles", EVERY, ids=lambda angles: type(angles).__name__)
def test_beyond_the_window_angles_are_exact(angles):
    table = angles.resolve(WINDOW).table(plain(16, 500_000.0), WINDOW, 300_000)
    table(slice(0, 1000))
    cos, sin = (x[WINDOW:] for x in table(slice(0, 300_000)))
    assert radians_off(cos, sin, torch.arange(WINDOW, 300_000), table.inv_freq) < 1e-6


@pytest.mark.parametrize("position", [100_000, 1_000_000, 4_000_000, 16_000_000])
@pytest.mark.parametrize("way", [1, -1])
def test_angles_of_far_positions_are_exact(position, way):
    freq = way * stock(128, 500_000.0).inv_freq
    phase, positions = phases(position, position + 3000, freq, WINDOW), torch.arange(position, position + 3000)
    assert radians_off(phase.cos(), phase.sin(), positions, freq) < 1e-6
    plain = phases(position, position + 3000, freq, None)
    assert radians_off(plain.cos(), plain.sin(), positions, freq) > 1e-3


@pytest.mark.parametrize("scale", [1.0, 2.0, 3.7, 16.0])
@pytest.mark.parametrize(("size", "base"), SIZES)
def test_pi(size, base, scale):
    table = PI(scale).resolve(WINDOW).table(plain(size, base), WINDOW, 2000)
    assert_angles(stock(size, base, rope_type="linear", factor=scale), table, 2000)


@pytest.mark.parametrize("options", [{}, {"attention_factor": 1.5}, {"beta_fast": 16.0, "beta_slow": 2.0}])
@pytest.mark.parametrize("factor", [2.0, 4.0, 13.0])
@pytest.mark.parametrize(("size", "base"), SIZES)
def test_yarn(size, base, factor, options):
    table = YaRN(factor, **options).resolve(WINDOW).table(plain(size, base), WINDOW, 2000)
    rotary = stock(size, base, rope_type="yarn", factor=factor, original_max_position_embeddings=WINDOW, **options)
    assert_angles(rotary, table, 2000)


@pytest.mark.parametrize(("window", "size", "base"), [(2, 64, 1e4), (3, 16, 10.0), (5, 128, 1e3), (1 << 17, 64, 10.0)])
def test_yarn_where_its_ramp_ends_before_it_begins(window, size, base):
    table = YaRN(4.0).resolve(window).table(plain(size, base), window, 4 * window)
    rotary = stock(size, base, rope_type="yarn", factor=4.0, original_max_position_embeddings=window)
    torch.testing.assert_close(table.inv_freq, rotary.inv_freq, rtol=1e-6, atol=0)


@pytest.mark.parametrize("n", [100, WINDOW, WINDOW + 1, 1500, 4096])
@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize(("size", "base"), SIZES)
def test_dynamic_ntk(size, base, factor, n):
    table = DynamicNTK(factor).table(plain(size, base), WINDOW, n)
    assert_angles(stock(size, base, rope_type="dynamic", factor=factor), table, n)


@pytest.mark.parametrize("scale", [2.0, 8.0])
@pytest.mark.parametrize(("size", "base"), SIZES)
def test_ntk_multiplies_the_base(size, base, scale):
    table = NTK(scale).table(plain(size, base), WINDOW, 2000)
    expected = inv_freq(size, base * scale ** (size / (size - 2)))
    torch.testing.assert_close(table.inv_freq.double(), expected, rtol=1e-6, atol=0)
    # The fastest channel keeps its frequency, the slowest is interpolated by the whole scale.
    own = inv_freq(size, base)
    torch.testing.assert_close((own / table.inv_freq)[[0, -1]], torch.tensor([1.0, scale]).double(), rtol=1e-5, atol=0)


def test_scaling_starts_from_the_models_own_angles():
    own = Table(inv_freq(HEAD) / 3, factor=1.2)
    for angles in (PI(2.0), NTK(2.0), DynamicNTK(), YaRN(2.0)):
        table = angles.resolve(WINDOW).table(own, WINDOW, 4 * WINDOW)
        assert table.inv_freq[-1] < own.inv_freq[-1]
        assert table.factor == pytest.approx(1.2 * (0.1 * math.log(2) + 1 if isinstance(angles, YaRN) else 1))


@pytest.mark.parametrize("angles", [PI(4.0), NTK(4.0), DynamicNTK(4.0), YaRN(4.0)])
def test_angles_that_turn_the_other_way_are_scaled_alike(angles):
    own = plain(64, 10000.0)
    scaled = angles.resolve(WINDOW).table(own, WINDOW, 2000)
    other = angles.resolve(WINDOW).table(Table(-own.inv_freq), WINDOW, 2000)
    assert torch.equal(other.inv_freq, -scaled.inv_freq) and other.factor == scaled.factor


@pytest.mark.parametrize("angles", [PI(4.0), NTK(4.0), DynamicNTK(4.0), YaRN(4.0)])
def test_channels_that_do_not_turn_change_nothing_for_the_others(angles):
    own, angles = inv_freq(64), angles.resolve(WINDOW)
    turning, all_of_them = (
        angles.table(Table(one), WINDOW, 4 * WINDOW).inv_freq for one in (own, torch.cat((own, 0 * own)))
    )
    assert torch.equal(all_of_them, torch.cat((turning, torch.zeros(32))))


@pytest.mark.parametrize("angles", [PI, NTK])
def test_defaults_follow_the_window(angles):
    assert angles().resolve(100) == angles(4.0)
    assert angles(target_length=250).resolve(100) == angles(2.5)
    assert angles(target_length=50).resolve(100) == angles(1.0)
    assert YaRN().resolve(100).factor == 4 and YaRN(target_length=250).resolve(100).factor == 2.5


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: PI(0.5), "scale must be ≥ 1"),
        (lambda: NTK(2.0, target_length=5), "scale or target_length, not both"),
        (lambda: PI(target_length=0), "target_length must be a number of tokens from 1"),
        (lambda: DynamicNTK(0.1), "factor must be ≥ 1"),
        (lambda: YaRN(0.5), "factor must be ≥ 1"),
        (lambda: YaRN(2.0, 4), "factor or target_length, not both"),
        (lambda: YaRN(target_length=-1), "target_length must be a number of tokens from 1"),
        (lambda: YaRN(beta_fast=1.0, beta_slow=2.0), "beta_slow < beta_fast"),
        (lambda: NTK(2.0).table(Table(inv_freq(2)), 10, 10), "at least 4 rotated channels"),
        (lambda: YaRN(2.0).resolve(10).table(Table(inv_freq(2)), 10, 10), "YaRN needs at least 4 rotated channels"),
    ],
)
def test_impossible_angles(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_exact_inside():
    assert Angles().exact(10, 99) and DynamicNTK().exact(10, 10) and not DynamicNTK().exact(10, 11)
    assert PI(1.0).exact(10, 99) and not PI(2.0).exact(10, 5)
    assert YaRN(1.0).resolve(10).exact(10, 99) and not YaRN(2.0).resolve(10).exact(10, 5)


def test_table_grows_and_takes_any_shape():
    table = Table(inv_freq(HEAD))
    positions = torch.tensor([[0, 7, 3], [900, 2, 7]])
    cos, sin = table(positions)
    phase = positions[..., None].double() * inv_freq(HEAD)
    torch.testing.assert_close(cos.double(), phase.cos(), rtol=0, atol=1e-4)
    torch.testing.assert_close(sin.double(), phase.sin(), rtol=0, atol=1e-4)
    assert all(x.shape == (0, HEAD // 2) for x in table(torch.arange(0)))


def test_half_layout_is_transformers(rope):
    x, positions = torch.randn(2, 3, 9, HEAD), torch.arange(4, 13)
    cos, sin = rope.table(positions)
    wide = [torch.cat((t, t), dim=-1)[None] for t in (cos, sin)]
    torch.testing.assert_close(rope.rotate_q(x, cos, sin), apply_rotary_pos_emb(x, x[:, :0], *wide)[0])


def test_rotation_as_complex_numbers(any_rope):
    x, positions = torch.randn(2, 3, 9, HEAD, dtype=torch.float64), torch.arange(4, 13)
    size, start = any_rope.rotated, any_rope.start
    out = any_rope.rotate_k(x, *any_rope.table(positions))
    rotated = torch.arange(start, start + size)
    pairs = rotated.view(-1, 2).mT if any_rope.layout == "interleaved" else rotated.view(2, -1)
    phase = positions[:, None].double() * any_rope.table.inv_freq.double()
    expected = torch.complex(x[..., pairs[0]], x[..., pairs[1]]) * torch.polar(torch.ones_like(phase), phase)
    expected = expected * any_rope.table.factor
    torch.testing.assert_close(out[..., pairs[0]], expected.real, rtol=0, atol=1e-5)
    torch.testing.assert_close(out[..., pairs[1]], expected.imag, rtol=0, atol=1e-5)
    still = [c for c in range(HEAD) if not start <= c < start + size]
    assert torch.equal(out[..., still], x[..., still])


def test_rotation_by_row(any_rope):
    x = torch.randn(2, 3, 5, HEAD)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 7, 9, 2, 0]])
    out = any_rope.rotate_q(x, *any_rope.table(positions))
    for row in range(2):
        alone = any_rope.rotate_q(x[row : row + 1], *any_rope.table(positions[row]))
        assert torch.equal(out[row : row + 1], alone)


def test_reduced_dtypes_round_once():
    torch.manual_seed(0)
    x = torch.randn(1, 2, 50, HEAD).bfloat16()
    cos, sin = Table(inv_freq(HEAD))(torch.arange(50))
    assert torch.equal(rotate(x, cos, sin), rotate(x.float(), cos, sin).bfloat16())


def test_normalisation_after_the_rotation():
    rope = Rope(Table(inv_freq(HEAD)), HEAD, norm_q=lambda x: 2 * x, norm_k=lambda x: 3 * x)
    cos_sin = rope.table(torch.arange(5))
    x = torch.randn(1, 1, 5, HEAD)
    assert torch.equal(rope.rotate_q(x, *cos_sin), 2 * rotate(x, *cos_sin))
    assert torch.equal(rope.with_table(rope.table).rotate_k(x, *cos_sin), 3 * rotate(x, *cos_sin))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_paired_channels_give_the_same_scores(any_rope, dtype):
    """Queries and keys in paired order, rotated in that order, multiply to what they do in the layer's own."""
    q, k, _ = make_qkv(9, dtype=dtype, kv_heads=4)
    cos, sin = any_rope.table(torch.arange(9))
    plain = any_rope.rotate_q(q, cos, sin) @ any_rope.rotate_k(k, cos, sin).mT
    paired = any_rope.paired()
    rotated = paired.rotate_q(any_rope.pair(q), cos, sin) @ paired.rotate_k(any_rope.pair(k), cos, sin).mT
    assert_same(rotated, plain)
    assert paired.layout == "interleaved" and paired.pair(q) is q
    with torch.enable_grad():
        assert torch.equal(any_rope.pair(q.clone().requires_grad_()), any_rope.pair(q))


def test_a_rotation_into_given_memory(any_rope):
    x, out = torch.randn(2, 3, 300, HEAD), torch.full((2, 300, 3, HEAD), float("nan")).transpose(1, 2)
    cos, sin = any_rope.table(torch.arange(300))
    assert any_rope.rotate_q(x, cos, sin, out=out) is out
    assert torch.equal(out, any_rope.rotate_q(x, cos, sin))


def test_channels_that_a_normalisation_knows_are_left_in_place():
    rope = Rope(Table(inv_freq(HEAD)), HEAD, norm_k=torch.nn.functional.normalize)
    assert rope.paired() is rope and rope.pair(x := torch.randn(1, 1, 2, HEAD)) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_inputs_begin_in_memory_does_not_count(any_rope, dtype):
    """A view at an odd place of a larger tensor, as of one token."""
    x = torch.randn(1, 1, 1, HEAD).to(dtype)
    odd = torch.cat((x.new_zeros(1), x.flatten()))[1:].view_as(x)
    assert odd.storage_offset() == 1
    cos, sin = any_rope.table(torch.arange(1) + 5)
    assert torch.equal(any_rope.rotate_q(odd, cos, sin), any_rope.rotate_q(x, cos, sin))
