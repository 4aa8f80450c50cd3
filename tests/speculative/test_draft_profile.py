"""DraftProfile: what rollouts that are left at their first step say of deeper nodes."""

from __future__ import annotations

import numpy as np
import pytest

from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.draft_profile import DraftProfile


def test_first_steps_that_keep_more_nodes_say_nothing_of_deeper_ones() -> None:
    """A whole tree leaves out some of the root's children."""
    profile = DraftProfile(4)

    def tree(parents: list[int], *chances: float) -> TokenTree:
        return TokenTree(range(len(parents)), parents, np.log(np.array(chances, np.float32)))

    profile.observe(tree([-1, 0, 1, 2], 0.6, 0.4, 0.3, 0.2), False)
    for _ in range(60):
        profile.observe(tree([-1, -1, -1], 0.6, 0.2, 0.1), True)
    assert profile.whole == pytest.approx([0.6, 0.4, 0.3, 0.2])
    assert profile.first_step == pytest.approx([0.6, 0.2, 0.1, 0.0], abs=1e-2)
    for _ in range(60):  # a text that is easier
        profile.observe(tree([-1], 0.9), True)
    assert profile.whole == pytest.approx([0.9, 0.6, 0.45, 0.3], rel=1e-2)
