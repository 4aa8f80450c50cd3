"""All figures about speculation, computed in one place from one histogram.

Definitions (the same in Python, server and C++): a *step* is one target verification of one
request. It emits its accepted drafts and one more token, the target's own, unless the text ended
before; so accepted drafts = emitted tokens - 1, counted on emitted tokens only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class SpeculativeMetrics:
    """Counts over verify steps, of one request or of many merged.

    `histogram[a]` is the number of steps that accepted a draft tokens; the token sampled by a
    prefill is not a step. `num_draft_tokens_per_source[s]` counts the draft tokens proposed by
    source s, the member s of a union, and `num_accepted_tokens_per_source` how many of them were
    accepted; other drafters are source 0. Tokens that processors force belong to none.
    """

    def __init__(self) -> None:
        self.histogram: list[int] = []
        self.num_draft_tokens = 0
        self.num_draft_tokens_per_source: list[int] = []
        self.num_accepted_tokens_per_source: list[int] = []
        self._drafted_depths: list[int] = []  # [d]: steps whose deepest draft node had depth d

    def __repr__(self) -> str:
        if not self.num_steps:
            return f"{type(self).__name__}(num_steps=0)"
        figures = (
            f"num_steps={self.num_steps}, num_draft_tokens={self.num_draft_tokens}, "
            f"num_accepted_tokens={self.num_accepted_tokens}, "
            f"acceptance_length={self.acceptance_length:.3g}"
        )
        return f"{type(self).__name__}({figures})"

    def record(
        self,
        emitted: int,
        drafted_nodes: int = 0,
        drafted_depth: int | None = None,
        by_source: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """Record one step: tokens emitted (1 or more), nodes verified, depth of the deepest one
        (default: a chain), and how many of them each source proposed and had accepted (default: all
        belong to the first)."""
        depth = drafted_nodes if drafted_depth is None else drafted_depth
        assert 1 <= emitted <= depth + 1 and depth <= drafted_nodes, (emitted, depth, drafted_nodes)
        _count(self.histogram, emitted - 1)
        _count(self._drafted_depths, depth)
        self.num_draft_tokens += drafted_nodes
        if by_source is None:
            by_source = ([drafted_nodes], [emitted - 1]) if drafted_nodes else ([], [])
        self._add_sources(*by_source)

    @classmethod
    def merged(cls, parts: Iterable[SpeculativeMetrics]) -> SpeculativeMetrics:
        """The sum of several."""
        total = cls()
        for part in parts:
            total.merge(part)
        return total

    def merge(self, other: SpeculativeMetrics) -> None:
        """Add the counts of `other`."""
        for accepted, steps in enumerate(other.histogram):
            _count(self.histogram, accepted, steps)
        for depth, steps in enumerate(other._drafted_depths):
            _count(self._drafted_depths, depth, steps)
        self.num_draft_tokens += other.num_draft_tokens
        self._add_sources(other.num_draft_tokens_per_source, other.num_accepted_tokens_per_source)

    def _add_sources(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        for source, (nodes, kept) in enumerate(zip(drafted, accepted, strict=True)):
            _count(self.num_draft_tokens_per_source, source, nodes)
            _count(self.num_accepted_tokens_per_source, source, kept)

    @property
    def num_steps(self) -> int:
        return sum(self.histogram)

    @property
    def num_drafts(self) -> int:
        """Steps that had any draft token to verify."""
        return self.num_steps - (self._drafted_depths[0] if self._drafted_depths else 0)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(accepted * steps for accepted, steps in enumerate(self.histogram))

    @property
    def num_emitted_tokens(self) -> int:
        return self.num_accepted_tokens + self.num_steps

    @property
    def num_accepted_tokens_per_pos(self) -> list[int]:
        """[i]: steps that accepted a draft at depth i + 1, up to the deepest ever drafted."""
        return [sum(self.histogram[i + 1 :]) for i in range(len(self._drafted_depths) - 1)]

    @property
    def num_drafts_per_pos(self) -> list[int]:
        """[i]: steps that had a draft at depth i + 1. Steps near the end of a text draft less."""
        depth = len(self._drafted_depths) - 1
        return [sum(self._drafted_depths[i + 1 :]) for i in range(depth)]

    @property
    def acceptance_rate_per_pos(self) -> list[float]:
        """Unconditional: accepted at that depth per step that drafted to that depth."""
        pairs = zip(self.num_accepted_tokens_per_pos, self.num_drafts_per_pos, strict=True)
        return [accepted / drafts for accepted, drafts in pairs]

    @property
    def acceptance_length(self) -> float:
        """Emitted tokens per step (accepted + 1); 0 before the first step."""
        return self.num_emitted_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted per drafted token; 0 if nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All figures, under the names of `LLM.get_metrics()`."""
        return {
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "num_steps": self.num_steps,
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_emitted_tokens": self.num_emitted_tokens,
            "num_accepted_tokens_per_pos": self.num_accepted_tokens_per_pos,
            "num_drafts_per_pos": self.num_drafts_per_pos,
            "acceptance_rate_per_pos": self.acceptance_rate_per_pos,
            "num_draft_tokens_per_source": list(self.num_draft_tokens_per_source),
            "num_accepted_tokens_per_source": list(self.num_accepted_tokens_per_source),
            "histogram": list(self.histogram),
        }


def _count(bins: list[int], index: int, by: int = 1) -> None:
    if index >= len(bins):
        bins.extend([0] * (index + 1 - len(bins)))
    bins[index] += by
