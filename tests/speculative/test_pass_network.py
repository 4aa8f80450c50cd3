"""Networks over the graphs of a lowered draft."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.speculative.pass_network import PassNetwork


class Doubling:
    """A graph with a limit to its rows, whose output is valid until its next call."""

    def __init__(self, most: int) -> None:
        self.output = torch.zeros(most, 2)

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        (rows,) = inputs
        assert len(rows) <= len(self.output) and rows.is_contiguous()
        self.output[: len(rows)] = 2 * rows
        return [self.output[: len(rows)]]


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_states_are_fused_in_calls_that_the_graph_takes(count: int) -> None:
    """More come together than a step has rows, where a draft has not been fed for long."""
    graph: Any = Doubling(4)
    network = PassNetwork(graph, graph, None, graph, max_fused=4)
    states = torch.randn(count, 2)
    assert torch.equal(network.fuse(states), 2 * states)
