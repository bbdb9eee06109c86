"""Muon for the matrices and Adam for the rest.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest matrix whose singular values are all about
one, so that rare directions, such as those of copying and of looking up, move as far in a step as the common ones of
prose. In a run of so few tokens that is what counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOMENTUM = 0.95
DECAY = 0.1  # of the matrices, times the learning rate
BETAS = (0.9, 0.95)
ADAM_SHARE = 0.15  # Adam's learning rate as a share of Muon's


def orthogonalized(matrix: Tensor) -> Tensor:
    """Singular values brought to about 0.7 to 1.2 in five Newton-Schulz steps of degree five."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon:
    """Steps of Muon on matrices, of Adam on embeddings and norms.

    Args:
        model: whose parameters are trained. Those of two dimensions in its layers are matrices.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = dict(model.named_parameters())
        self.matrices = [p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in parameters.items() if p.ndim != 2 or "embed" in name]
        self.momenta = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.Adam(others, betas=BETAS)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step with the gradients that the parameters have; they are gone afterwards."""
        for p, momentum in zip(self.matrices, self.momenta, strict=True):
            assert p.grad is not None
            momentum.mul_(MOMENTUM).add_(p.grad)
            update = orthogonalized(p.grad + MOMENTUM * momentum)
            p.mul_(1 - rate * DECAY)
            p.add_(update, alpha=-rate * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)
            p.grad = None
        for group in self.adam.param_groups:
            group["lr"] = rate * ADAM_SHARE
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def state(self) -> dict[str, object]:
        """For a checkpoint."""
        return {"momenta": self.momenta, "adam": self.adam.state_dict()}

    def load(self, state: dict[str, object]) -> None:
        """Go on from a checkpoint's state."""
        self.momenta = state["momenta"]
        self.adam.load_state_dict(state["adam"])
