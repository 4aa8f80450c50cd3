"""Activations are torch's, and the other rows of a call never change a row's bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.config.feed_forwards.dense import ACTIVATIONS
from trtspec.models.activations import activate, activate_gated

EXPECTED: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation(kind: str) -> None:
    x = 4 * torch.randn(7, 13, generator=torch.Generator().manual_seed(0))
    x[0, :4] = torch.tensor([-200.0, -90.0, 90.0, 200.0])
    found = activate(kind, x)
    torch.testing.assert_close(found, EXPECTED[kind](x), rtol=2e-6, atol=1e-6)
    assert torch.equal(torch.cat([activate(kind, row) for row in x.split(1)]), found)
    both = torch.cat((x, x + 1), dim=1)
    gated = activate_gated(kind, both)
    torch.testing.assert_close(gated, EXPECTED[kind](x) * (x + 1), rtol=2e-6, atol=2e-5)
    assert torch.equal(torch.cat([activate_gated(kind, row) for row in both.split(2)]), gated)
