"""The draft's vocabulary: frequent tokens and those it must have, as many as pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trtspec.builder.token_choice import DraftCost, choose
from trtspec.errors import ConfigError

COST = DraftCost(target=10**8, body=10**6, row=1000, depth=5)


def data(vocab: int, kinds: int) -> torch.Tensor:
    """Token 3 i, 2 (kinds - i) times each for i < kinds."""
    counts = 2 * (kinds - torch.arange(kinds))
    return torch.repeat_interleave((3 * torch.arange(kinds)) % vocab, counts)


def test_given_size() -> None:
    found = choose([data(1000, 30)] * 2, 1000, always=[999, 5], size=10, cost=COST)
    assert found.ids is not None
    assert found.ids.tolist() == [0, 3, 5, 6, 9, 12, 15, 18, 21, 999]
    counts = [2 * (30 - i) for i in range(30)]
    assert found.coverage == pytest.approx(sum(counts[:8]) / sum(counts))
    assert choose([data(1000, 30)], 1000, [], 0, COST).ids is None
    assert choose([data(1000, 30)], 1000, [], 1000, COST).ids is None
    for size in (2, 1001, -1):
        with pytest.raises(ConfigError, match=f"--draft_vocab_size {size} must be above 2"):
            choose([data(1000, 30)], 1000, [999, 5], size, COST)


@pytest.mark.slow
def test_chosen_size() -> None:
    """As many as pay: few where few cover the data or rows are dear, all where they are cheap."""

    def size(kinds: int, row: int, vocab: int = 20_000) -> int:
        found = choose([data(vocab, kinds)] * 2, vocab, [2], None, replace(COST, row=row))
        assert found.ids is None or 2 in found.ids
        return found.size(vocab)

    assert size(500, row=1000) == 1024
    dear, middling, cheap = (size(5000, row=row) for row in (20_000, 6000, 10))
    assert 1024 <= dear < middling < cheap == 5120
    assert dear % 1024 == middling % 1024 == 0
    assert size(900, row=0, vocab=1000) == 1000


def test_speed() -> None:
    """Of a chain of two with a pass of 5 % of the target's, by hand."""
    cost = DraftCost(target=100, body=3, row=1, depth=2)
    assert cost.speed(2, 1.0) == pytest.approx((1 + 0.75 + 0.75**2) / 1.1)
    assert cost.speed(2, 0.5) == pytest.approx((1 + 0.375 + 0.375**2) / 1.1)


def test_coverage_is_that_of_other_texts() -> None:
    """Tokens that come once are in the texts that they were counted in, and in no others."""
    own = [torch.cat((torch.arange(900).repeat(10), 20_000 + 500 * i + torch.arange(500)))
           for i in range(4)]  # fmt: skip
    found = choose(own, 40_000, [], 3000, COST)
    assert found.coverage == pytest.approx(9000 / 9500, abs=1e-3)


def test_equal_counts_choose_the_lower_id() -> None:
    found = choose([torch.arange(100)], 100, [], 10, COST)
    assert found.ids is not None and found.ids.tolist() == list(range(10))
