"""The three solvers: each finds what its docstring says, and none beats the closed form."""

from __future__ import annotations

import pytest
import torch

from longspan.calibration import Moments, closed_form, pca, sgd


def samples(groups=1, tokens=2000, channels=12, seed=0, mean=3.0):
    """Queries and keys ``[G, N, d]`` with unequal directions, the keys with a mean."""
    draw = torch.Generator().manual_seed(seed)
    spread = torch.logspace(0, -1.5, channels)
    q, k, a, b = (torch.randn(groups, n, channels, generator=draw) for n in (tokens, tokens, channels, channels))
    return (q * spread) @ a, (k * spread) @ b + mean


def moments(q, k):
    q, k = q.double(), k.double()
    k = k - k.mean(1, keepdim=True)
    return q.mT @ q / q.shape[1], k.mT @ k / k.shape[1]


def objective(c_q, c_k, theta_q, theta_k):
    """The relative error of reduced scores: ``E (q · k - θ_q(q) · θ_k(k))² / E (q · k)²`` over independent pairs.

    Args:
        c_q, c_k: ``[G, d, d]`` in fp64.
        theta_q, theta_k: ``[G, d', d]``.

    Returns:
        ``[G]`` in fp64.
    """
    residual = torch.eye(c_q.shape[-1], dtype=c_q.dtype, device=c_q.device) - (theta_q.mT @ theta_k).to(c_q)
    error = torch.einsum("gab,gbc,gcd,gad->g", c_q, residual, c_k, residual)
    return error / torch.einsum("gab,gba->g", c_q, c_k)


def over_all_pairs(q, k, theta_q, theta_k):
    """The objective as the paper states it, over every query and every centred key."""
    q, k = q.double(), k.double() - k.double().mean(1, keepdim=True)
    exact = q @ k.mT
    reduced = (q @ theta_q.double().mT) @ (k @ theta_k.double().mT).mT
    return (exact - reduced).square().mean((1, 2)) / exact.square().mean((1, 2))


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("solver", [closed_form, pca])
def test_objective_is_the_mean_over_all_pairs(solver, rank):
    q, k = samples(groups=2, tokens=500)
    thetas = solver(*moments(q, k), rank)
    assert all(theta.shape == (2, rank, 12) and theta.dtype == torch.float32 for theta in thetas)
    torch.testing.assert_close(objective(*moments(q, k), *thetas), over_all_pairs(q, k, *thetas), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("rank", [1, 4, 11])
def test_closed_form_is_the_formula_with_inverted_roots(rank):
    c_q, c_k = (c[0] for c in moments(*samples()))

    def power(c, p):
        values, vectors = torch.linalg.eigh(c)
        return vectors @ torch.diag(values**p) @ vectors.T

    u, s, vt = torch.linalg.svd(power(c_q, 0.5) @ power(c_k, 0.5))
    s[rank:] = 0
    best = power(c_q, -0.5) @ u @ torch.diag(s) @ vt @ power(c_k, -0.5)
    theta_q, theta_k = closed_form(c_q[None], c_k[None], rank)
    torch.testing.assert_close((theta_q.mT @ theta_k)[0].double(), best, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 4, 7])
def test_no_step_away_from_the_closed_form_helps(rank):
    c_q, c_k = moments(*samples(seed=1))
    theta_q, theta_k = (theta.double().requires_grad_() for theta in closed_form(c_q, c_k, rank))
    best = objective(c_q, c_k, theta_q, theta_k).sum()
    best.backward()
    assert float(theta_q.grad.norm() * theta_q.detach().norm()) < 1e-6  # where all scores together are 1
    draw = torch.Generator().manual_seed(0)
    for size in (1e-3, 1e-2, 1e-1, 1.0):
        for _ in range(20):
            step_q, step_k = (size * torch.randn(theta_q.shape, generator=draw).double() for _ in "qk")
            with torch.no_grad():
                assert objective(c_q, c_k, theta_q + step_q, theta_k + step_k).sum() >= best * (1 - 1e-6)


def test_reduced_queries_and_keys_are_of_a_size():
    c_q, c_k = moments(*samples())
    theta_q, theta_k = (theta.double() for theta in closed_form(c_q, c_k, 5))
    of_q, of_k = theta_q @ c_q @ theta_q.mT, theta_k @ c_k @ theta_k.mT
    torch.testing.assert_close(of_q, of_k, rtol=1e-4, atol=1e-4 * float(of_q.max()))


def test_full_rank_leaves_nothing():
    q, k = samples()
    c_q, c_k = moments(q, k)
    for solver in (closed_form, pca):
        assert float(objective(c_q, c_k, *solver(c_q, c_k, 12))) < 1e-9


def test_moments_of_lower_rank_give_finite_maps():
    q, k = samples(channels=12)
    q[..., 4:], k[..., :2] = 0, 0
    c_q, c_k = moments(q, k)
    theta_q, theta_k = closed_form(c_q, c_k, 10)
    assert theta_q.isfinite().all() and theta_k.isfinite().all()
    assert float(objective(c_q, c_k, theta_q, theta_k)) < 1e-9
    assert not theta_q[:, 5:].any() and not theta_k[:, 5:].any()
    nothing = closed_form(torch.zeros_like(c_q), c_k, 3)
    assert not any(theta.any() for theta in nothing)


def test_pca_is_the_keys_own_components():
    _, c_k = moments(*samples())
    theta_q, theta_k = pca(torch.eye(12, dtype=torch.float64)[None], c_k, 4)
    assert torch.equal(theta_q, theta_k)
    torch.testing.assert_close((theta_k @ theta_k.mT)[0], torch.eye(4), rtol=0, atol=1e-5)
    kept = float(torch.einsum("grd,gde,gre->g", theta_k.double(), c_k, theta_k.double()))
    assert kept == pytest.approx(float(torch.linalg.eigvalsh(c_k)[0, -4:].sum()), rel=1e-5)


def test_sgd_comes_close_and_the_closed_form_is_best():
    q, k = samples(groups=2, tokens=6400)
    c_q, c_k = moments(q, k)
    by = {name: objective(c_q, c_k, *solver(c_q, c_k, 3)) for name, solver in (("closed", closed_form), ("pca", pca))}
    by["sgd"] = objective(c_q, c_k, *sgd(q, k, 3, rate=2e-2))
    assert (by["closed"] < by["pca"]).all() and (by["closed"] < by["sgd"]).all()
    assert (by["sgd"] < 1.5 * by["closed"]).all()


def test_sgd_is_the_same_again_and_ignores_the_keys_mean():
    q, k = samples(tokens=640, mean=0.0)
    with torch.inference_mode():
        first, again = sgd(q, k, 3, epochs=2, seed=4), sgd(q, k, 3, epochs=2, seed=4)
    assert all(torch.equal(a, b) and not a.requires_grad for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], sgd(q, k, 3, epochs=2, seed=5)[0])
    torch.testing.assert_close(first[1], sgd(q, k + 100.0, 3, epochs=2, seed=4)[1], rtol=1e-2, atol=1e-3)


def test_sgd_solves_each_group_by_itself():
    q, k = samples(groups=1, tokens=640)
    alone = sgd(q, k, 2, epochs=3)
    other = samples(groups=1, tokens=640, seed=9)
    # The same start and the same order of samples, beside a group a hundred times as large.
    both = sgd(torch.cat((q, 100 * other[0])), torch.cat((k, other[1])), 2, epochs=3)
    start = sgd(torch.cat((q, q)), torch.cat((k, k)), 2, epochs=3)
    torch.testing.assert_close(both[0][0], start[0][0])
    assert alone[0].shape == (1, 2, 12)


@pytest.mark.parametrize("rank", [0, 13])
@pytest.mark.parametrize("solver", [closed_form, pca])
def test_a_rank_that_cannot_be(solver, rank):
    with pytest.raises(ValueError, match=f"1 to 12.*channels.*{rank}"):
        solver(*moments(*samples()), rank)


def test_inputs_that_cannot_be():
    c_q, c_k = moments(*samples())
    with pytest.raises(ValueError, match="float64"):
        closed_form(c_q.float(), c_k, 2)
    with pytest.raises(ValueError, match="not finite"):
        closed_form(c_q * float("nan"), c_k, 2)
    strange = c_q.clone()
    strange[0, 2, 1] = float("inf")
    for both in ((strange, c_k), (c_q, strange)):
        with pytest.raises(ValueError, match="not finite"):
            closed_form(*both, 2)
    with pytest.raises(ValueError, match="one batch needs 128"):
        sgd(*samples(tokens=100), 2)
    with pytest.raises(ValueError, match="float32 tensors of one shape"):
        sgd(samples()[0].double(), samples()[1], 2)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("pieces", [[100], [1, 60, 0, 39]])
def test_moments_stream(pieces, offset):
    """GQA of 6 query heads on 2 key heads of 5 channels, in pieces, equals the sums written out."""
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 100, 5, generator=draw) for heads in (6, 2))
    k = k + offset
    held, first = Moments(2, 5), 0
    for size in pieces:
        held.add(q[:, :, first : first + size], k[:, :, first : first + size])
        first += size
    assert held.tokens == 200
    summed = torch.stack([q[:, 3 * h : 3 * h + 3].double().sum(1) for h in range(2)], 1)
    flat_q, flat_k = (torch.cat([x[:, h] for h in range(2)], -1).double().flatten(0, 1)[None] for x in (summed, k))
    expected = moments(flat_q, flat_k)
    for found, wanted in zip(held.layer(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    for found, wanted in zip(held.heads(), expected, strict=True):
        torch.testing.assert_close(found, torch.stack([wanted[0, :5, :5], wanted[0, 5:, 5:]]), rtol=1e-9, atol=1e-9)


def test_moments_refuse_what_does_not_fit():
    held = Moments(2, 5)
    with pytest.raises(ValueError, match="no tokens"):
        held.layer()
    with pytest.raises(ValueError, match="3 heads of 5"):
        held.add(torch.zeros(1, 6, 4, 5), torch.zeros(1, 3, 4, 5))
    with pytest.raises(ValueError, match="5 query heads"):
        held.add(torch.zeros(1, 5, 4, 5), torch.zeros(1, 2, 4, 5))
