"""Three ways to find ``θ_q`` and ``θ_k``, all for ``G`` independent problems at once.

A layer is one problem of ``d = Hkv * D`` channels; its key heads are ``Hkv`` problems of ``d = D`` channels. All look
for small ``E (q · k - θ_q(q) · θ_k(k))²`` over independent pairs of a query and a centred key (ESA, Eq 7).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Solver = Literal["closed_form", "sgd", "pca"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)
"""The names of the ways to make reduced scores."""
_FLOOR = 1e-6  # of the largest singular value; below it lies what fp32 queries and keys cannot tell from nothing


def closed_form(c_q: Tensor, c_k: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The exact minimum over all maps of this rank, from second moments alone.

    Over independent pairs the objective is ``‖C_q^½ (I - W) C_k^½‖²`` (Frobenius) with ``W = θ_qᵀ θ_k``. Let
    ``U S Vᵀ = C_q^½ C_k^½``, cut to the ``rank`` largest. Then ``W = C_q^-½ U S Vᵀ C_k^-½`` is the best, and since
    ``C_q^-½ U S = C_k^½ V`` and ``S Vᵀ C_k^-½ = Uᵀ C_q^½``, no root has to be inverted:
    ``θ_q = S^-½ Vᵀ C_k^½``, ``θ_k = S^-½ Uᵀ C_q^½``. Reduced queries and keys both have the second moments ``S``, so
    they are of a size and survive rounding alike.

    Args:
        c_q, c_k: ``[G, d, d]`` in fp64, the queries' moments and the centred keys'.
        rank: ``d'``, at most ``d``. Where there are fewer singular values above 1e-6 of the largest, the maps are
            filled up with zeros: nothing is left to be explained.

    Returns:
        ``θ_q, θ_k``, ``[G, rank, d]`` each in fp32.
    """
    _check(c_q, c_k, rank)
    root_q, root_k = _root(c_q), _root(c_k)
    u, s, vt = torch.linalg.svd(root_q @ root_k)
    s = s[:, :rank, None]
    scale = torch.where(s > _FLOOR * s[:, :1], s, torch.inf).rsqrt()
    theta_q = scale * (vt[:, :rank] @ root_k)
    theta_k = scale * (u[:, :, :rank].mT @ root_q)
    return theta_q.float(), theta_k.float()


def pca(c_q: Tensor, c_k: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The baseline: queries and centred keys both projected onto the keys' leading principal components.

    ``θ_q = θ_k``, the ``rank`` eigenvectors of ``C_k`` with the largest eigenvalues. It is best at giving back the keys
    and knows nothing of the queries. Arguments and result are those of ``closed_form``.
    """
    _check(c_q, c_k, rank)
    _, vectors = torch.linalg.eigh(c_k)
    theta = vectors.flip(-1)[..., :rank].mT.float().contiguous()
    return theta, theta.clone()


def sgd(
    q: Tensor, k: Tensor, rank: int, *, rate: float = 5e-4, batch: int = 128, epochs: int = 10, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The paper's: gradient steps on the objective over pairs of a query and a key drawn apart from each other.

    In each epoch queries and keys are shuffled independently, and every batch of ``batch`` pairs is one step of Adam
    (the paper names the rate and not the rule; plain gradient descent at this rate does not arrive).

    Args:
        q, k: ``[G, N, d]`` in fp32, unrotated; the keys are centred here.
        rank: ``d'``.
        rate: step size. batch: pairs a step. epochs: passes over the samples. seed: of the start and the shuffling.

    Returns:
        ``θ_q, θ_k``, ``[G, rank, d]`` each in fp32.
    """
    groups, samples, channels = q.shape
    if k.shape != q.shape or q.dtype != torch.float32 or k.dtype != torch.float32:
        raise ValueError(f"q and k are float32 of one shape, not {q.dtype} {list(q.shape)}, {k.dtype} {list(k.shape)}")
    _check_rank(rank, channels)
    if samples < batch:
        raise ValueError(f"{samples} samples do not fill one batch of {batch}")
    draw = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False), torch.enable_grad():
        q, k = q.detach().clone(), k - k.mean(1, keepdim=True)
        thetas = [
            torch.empty(groups, rank, channels).uniform_(-1, 1, generator=draw).mul_(channels**-0.5).to(q.device)
            for _ in "qk"
        ]
        theta_q, theta_k = (theta.requires_grad_() for theta in thetas)
        optimizer = torch.optim.Adam([theta_q, theta_k], lr=rate)
        for _ in range(epochs):
            of_q, of_k = (torch.randperm(samples, generator=draw).to(q.device) for _ in "qk")
            for first in range(0, samples - batch + 1, batch):
                a, b = q[:, of_q[first : first + batch]], k[:, of_k[first : first + batch]]
                reduced = ((a @ theta_q.mT) * (b @ theta_k.mT)).sum(-1)
                # Summed over the problems, which share nothing: each gets the gradient of its own mean.
                loss = ((a * b).sum(-1) - reduced).square().mean(-1).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return theta_q.detach(), theta_k.detach()


def objective(c_q: Tensor, c_k: Tensor, theta_q: Tensor, theta_k: Tensor) -> Tensor:
    """What is left of the scores: ``E (q · k - θ_q(q) · θ_k(k))² / E (q · k)²`` over independent pairs, ``[G]``.

    Args:
        c_q, c_k: ``[G, d, d]`` in fp64. theta_q, theta_k: ``[G, d', d]``.
    """
    rest = torch.eye(c_q.shape[-1], dtype=c_q.dtype, device=c_q.device) - (theta_q.mT @ theta_k).to(c_q)
    left = torch.einsum("gab,gbc,gcd,gad->g", c_q, rest, c_k, rest)
    return left / torch.einsum("gab,gba->g", c_q, c_k)


def _root(c: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(c)
    return (vectors * values.clamp(min=0).sqrt()[:, None, :]) @ vectors.mT


def _check(c_q: Tensor, c_k: Tensor, rank: int) -> None:
    square = c_q.dim() == 3 and c_q.shape[-1] == c_q.shape[-2] and c_q.shape == c_k.shape
    if not square or c_q.dtype != torch.float64 or c_k.dtype != torch.float64:
        raise ValueError(
            f"second moments are float64 [G, d, d], not {c_q.dtype} {list(c_q.shape)} and {c_k.dtype} {list(c_k.shape)}"
        )
    if not bool(c_q.isfinite().all() and c_k.isfinite().all()):
        raise ValueError("the queries' or keys' second moments are not finite: the model overflows on this text")
    _check_rank(rank, c_q.shape[-1])


def _check_rank(rank: int, channels: int) -> None:
    if not 1 <= rank <= channels:
        raise ValueError(f"a reduced size is 1 to the {channels} channels that are there, not {rank}")
