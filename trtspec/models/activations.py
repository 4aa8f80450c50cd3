"""Activations between two linear layers, written out: torch's own kernels round an array's tail
differently from its body, so the number of rows in a call would change a row's bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_GELU_SLOPE = 2 * math.sqrt(2 / math.pi)


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _gelu_tanh(x: Tensor) -> Tensor:
    # (1 + tanh(u)) / 2 is the sigmoid of 2 u.
    return x / (1 + torch.exp(-_GELU_SLOPE * (x + 0.044715 * x * x * x)))


def _quick_gelu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-1.702 * x))


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


def _relu2(x: Tensor) -> Tensor:
    return torch.relu(x) * torch.relu(x)


_IN_FLOAT32: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": torch.relu,
    "relu2": _relu2,
}


def activate(kind: str, x: Tensor) -> Tensor:
    """An activation of ``ACTIVATIONS`` (see `DenseSpec`) on ``x [T, K]``, in float32, rounded
    once."""
    return _IN_FLOAT32[kind](x.float()).to(x.dtype)


def activate_gated(kind: str, x: Tensor) -> Tensor:
    """``act(gate) * up`` ``[T, K]`` for gate and up side by side ``[T, 2K]``; in float32, rounded
    once."""
    gate, up = x.float().chunk(2, dim=-1)
    return (_IN_FLOAT32[kind](gate) * up).to(x.dtype)
