"""Three solvers for ``θ_q`` and ``θ_k``, each for a batch of ``G`` independent problems.

A layer is one problem with ``d = Hkv * D`` channels; its key heads are ``Hkv`` problems with ``d = D`` channels. All
solvers minimise ``E (q · k - θ_q(q) · θ_k(k))²`` over independent pairs of a query and a centred key (ESA, Eq 7).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from longspan.errors import CalibrationError

Solver = Literal["closed_form", "sgd", "pca"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)
"""The names of the solvers."""
SGD_BATCH = 128  # pairs per step
_FLOOR = 1e-6  # of the largest singular value; smaller ones are rounding noise of fp32 queries and keys


def closed_form(c_q: Tensor, c_k: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The exact minimum over all maps of this rank, computed from second moments.

    Over independent pairs the objective is ``‖C_q^½ (I - W) C_k^½‖²`` (Frobenius) with ``W = θ_qᵀ θ_k``. Let
    ``U S Vᵀ = C_q^½ C_k^½``, truncated to the ``rank`` largest singular values. Then ``W = C_q^-½ U S Vᵀ C_k^-½`` is
    the minimum. Since ``C_q^-½ U S = C_k^½ V`` and ``S Vᵀ C_k^-½ = Uᵀ C_q^½``, no root has to be inverted:
    ``θ_q = S^-½ Vᵀ C_k^½``, ``θ_k = S^-½ Uᵀ C_q^½``. Reduced queries and reduced keys both have the second moments
    ``S``, so rounding affects both equally.

    Args:
        c_q, c_k: ``[G, d, d]`` in fp64, the second moments of queries and of centred keys.
        rank: ``d'``, at most ``d``. Singular values below 1e-6 of the largest give zero rows in the maps: they carry
            no information.

    Returns:
        ``θ_q, θ_k``: ``[G, rank, d]`` each, in fp32.

    Raises:
        ValueError: the moments have a wrong shape or dtype or are not finite, or ``rank`` is out of range.
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
    """The baseline: project queries and centred keys onto the leading principal components of the keys.

    ``θ_q = θ_k``: the ``rank`` eigenvectors of ``C_k`` with the largest eigenvalues. They minimise the reconstruction
    error of the keys and ignore the queries. Arguments (same shapes), result and errors are those of ``closed_form``.
    """
    _check(c_q, c_k, rank)
    _, vectors = torch.linalg.eigh(c_k)
    theta = vectors.flip(-1)[..., :rank].mT.float().contiguous()
    return theta, theta.clone()


def sgd(
    q: Tensor, k: Tensor, rank: int, *, rate: float = 5e-4, batch: int = SGD_BATCH, epochs: int = 10, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The paper's solver: gradient steps on the objective over independently drawn pairs of a query and a key.

    Each epoch shuffles queries and keys independently; every ``batch`` pairs are one step of Adam. The paper states
    the rate but not the optimizer; plain gradient descent does not converge at this rate.

    Args:
        q, k: ``[G, N, d]`` in fp32, unrotated; the solver centres the keys.
        rank: ``d'``.
        rate: the step size.
        batch: pairs per step.
        epochs: passes over the samples.
        seed: of the initial maps and the shuffling.

    Returns:
        ``θ_q, θ_k``: ``[G, rank, d]`` each, in fp32.

    Raises:
        ValueError: the shapes or dtypes are wrong, ``rank`` is out of range, or ``N < batch``.
    """
    groups, samples, channels = q.shape
    if k.shape != q.shape or q.dtype != torch.float32 or k.dtype != torch.float32:
        raise CalibrationError(
            f"q and k must be float32 tensors of one shape, not {q.dtype} {list(q.shape)} and {k.dtype} {list(k.shape)}"
        )
    _check_rank(rank, channels)
    if samples < batch:
        raise CalibrationError(f"one batch needs {batch} samples, and q and k have {samples}")
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False), torch.enable_grad():
        q, k = q.detach().clone(), k - k.mean(1, keepdim=True)
        thetas = [
            torch.empty(groups, rank, channels).uniform_(-1, 1, generator=generator).mul_(channels**-0.5).to(q.device)
            for _ in "qk"
        ]
        theta_q, theta_k = (theta.requires_grad_() for theta in thetas)
        optimizer = torch.optim.Adam([theta_q, theta_k], lr=rate)
        for _ in range(epochs):
            order_q, order_k = (torch.randperm(samples, generator=generator).to(q.device) for _ in "qk")
            for first in range(0, samples - batch + 1, batch):
                a, b = q[:, order_q[first : first + batch]], k[:, order_k[first : first + batch]]
                reduced = ((a @ theta_q.mT) * (b @ theta_k.mT)).sum(-1)
                # The problems share no parameters, so the sum over them gives each the gradient of its own mean.
                loss = ((a * b).sum(-1) - reduced).square().mean(-1).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return theta_q.detach(), theta_k.detach()


def _root(c: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(c)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()[:, None, :]) @ vectors.mT
    return root


def _check(c_q: Tensor, c_k: Tensor, rank: int) -> None:
    square = c_q.dim() == 3 and c_q.shape[-1] == c_q.shape[-2] and c_q.shape == c_k.shape
    if not square or c_q.dtype != torch.float64 or c_k.dtype != torch.float64:
        raise CalibrationError(
            "second moments must be float64 tensors [G, d, d], not "
            f"{c_q.dtype} {list(c_q.shape)} and {c_k.dtype} {list(c_k.shape)}"
        )
    if not bool(c_q.isfinite().all() and c_k.isfinite().all()):
        raise CalibrationError("the second moments of queries or keys are not finite: the model overflows on this text")
    _check_rank(rank, c_q.shape[-1])


def _check_rank(rank: int, channels: int) -> None:
    if not 1 <= rank <= channels:
        raise CalibrationError(f"a reduced size must be 1 to {channels}, the number of channels, not {rank}")
