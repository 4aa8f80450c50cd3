"""What drafters without a network cost and guess, for all there are."""

from __future__ import annotations

import pytest

from trtspec.bench.draft_free import measure, repeating_text
from trtspec.bench.runs.methods import BenchMethod, fitting_methods, read_methods
from trtspec.errors import ConfigError


def free() -> list[BenchMethod]:
    return [method for method in fitting_methods([]) if method.config is not None]


@pytest.mark.parametrize("method", free(), ids=lambda method: method.name)
def test_a_text_that_repeats_is_foreseen(method: BenchMethod) -> None:
    assert method.config is not None
    cost = measure(method.config, repeating_text(120, 7, 0.0, 1000), 40)
    assert len(cost.steps) == 39 and cost.history > 0
    # At the end of the text there is nothing to be right about.
    assert cost.drafted > 2 and 0.8 * cost.drafted < cost.right <= cost.drafted


def test_what_needs_a_network_is_refused() -> None:
    (_, method) = read_methods(['{"method": "draft_model", "model": "x", "num_steps": 2}'], [])
    assert method.config is not None
    with pytest.raises(ConfigError, match="needs a draft engine"):
        measure(method.config, [1] * 30, 5)
