"""Muon: an optimizer for matrices, with products in a dtype that the device is fast at."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM, _DECAY = 0.95, 0.1
_SCALE = 0.2
"""Root mean square of an update, the same as AdamW's, so both use the same learning rates."""


class Muon(torch.optim.Optimizer):
    """Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with
    Nesterov momentum, decoupled weight decay and the scale of "Muon is Scalable for LLM Training"
    (2025).

    `torch.optim.Muon` does the same, but always in bfloat16, for which a CPU may lack fast
    products: there an update took six times as long as the step it followed. ``dtype``: of the
    products.
    """

    def __init__(self, parameters: Sequence[Tensor], rate: float, dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": rate})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate = group["lr"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                mean = state["momentum_buffer"].lerp_(parameter.grad, 1 - _MOMENTUM)
                ahead = parameter.grad.lerp(mean, _MOMENTUM)
                update = orthogonal(ahead.to(self._dtype))
                scale = _SCALE * math.sqrt(max(parameter.shape))
                parameter.mul_(1 - rate * _DECAY).add_(update, alpha=-rate * scale)


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix ``[m, n]`` with all singular values moved to about 0.5 to 1.5: five Newton-Schulz
    iterations of the fifth order, over the shorter side."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    a, b, c = _COEFFICIENTS
    matrix = matrix / matrix.norm().clamp_min(1e-7)
    for _ in range(_ITERATIONS):
        gram = matrix @ matrix.T
        matrix = torch.addmm(matrix, torch.addmm(gram, gram, gram, beta=b, alpha=c), matrix, beta=a)
    return matrix
