"""Fixtures of the tests that serve whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from trtspec.ops.draft_batch import DraftBatch


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """All tokens that rollouts propose."""
    seen: set[int] = set()
    cut: Callable[..., DraftBatch] = DraftBatch.cut

    def watched(places: Any, nodes: tuple[Tensor, ...], *rest: Any) -> DraftBatch:
        seen.update(nodes[0].flatten().tolist())
        return cut(places, nodes, *rest)

    monkeypatch.setattr(DraftBatch, "cut", staticmethod(watched))
    return seen
