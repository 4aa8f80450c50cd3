"""The draft's vocabulary: frequent tokens and those it must have, as few as cover the data."""

from __future__ import annotations

import pytest
import torch

from trtspec.errors import ConfigError
from trtspec.train.vocabulary import choose


def data(vocab: int, kinds: int) -> torch.Tensor:
    """Token 3 i, 2 (kinds - i) times each for i < kinds."""
    counts = 2 * (kinds - torch.arange(kinds))
    return torch.repeat_interleave((3 * torch.arange(kinds)) % vocab, counts)


def test_given_size() -> None:
    found = choose([data(1000, 30), data(1000, 30)], 1000, always=[999, 5], size=10)
    assert found.ids is not None
    assert found.ids.tolist() == [0, 3, 5, 6, 9, 12, 15, 18, 21, 999]
    counts = [2 * (30 - i) for i in range(30)]
    assert found.coverage == pytest.approx(sum(counts[:8]) / sum(counts))
    assert choose([data(1000, 30)], 1000, [], 0).ids is None
    assert choose([data(1000, 30)], 1000, [], 1000).ids is None
    for size in (2, 1001, -1):
        with pytest.raises(ConfigError, match=f"--draft_vocab_size {size} must be above 2"):
            choose([data(1000, 30)], 1000, [999, 5], size)


def test_chosen_size() -> None:
    """The fewest multiple of 1,024 that covers 99.5 %; all where that saves little."""
    few = choose([data(50_000, 500)], 50_000, [2], None)
    assert few.ids is not None and few.size(50_000) == 1024 and few.coverage == 1.0
    assert 2 in few.ids
    many = choose([data(50_000, 2000)], 50_000, [2], None)
    assert many.size(50_000) == 2048 and many.coverage >= 0.995
    assert choose([data(1500, 500)], 1500, [2], None).ids is None


def test_equal_counts_choose_the_lower_id() -> None:
    found = choose([torch.arange(100)], 100, [], 10)
    assert found.ids is not None and found.ids.tolist() == list(range(10))
