"""Suffix decoding: drafts continue the text as it, or an earlier response, continued before."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

import torch

from trtspec.executor.step.drafter import Drafter, DrafterNeeds
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.suffix.options import SuffixDecodingConfig


class SuffixSizes(NamedTuple):
    """Active requests, stored responses, their tokens, and the bytes of everything."""

    num_active: int
    num_cached: int
    num_cached_tokens: int
    memory_bytes: int


class SuffixDrafter(Drafter):
    """The drafter of both step loops (cpp/include/trtspec/runtime/suffix_drafter.hpp), which reads
    texts in place; no model, no K/V.

    A suffix tree counts how often every string of up to max_depth tokens occurs in its texts, and
    drafts tokens that continue the end of a text as these texts did (suffix decoding,
    arXiv:2411.04975). A request's text enters its own tree during prefill, and that of all
    responses as its tokens are accepted. A response stays there when its request finishes, is
    aborted or is preempted; a preempted one continues it.
    """

    def __init__(self, config: SuffixDecodingConfig) -> None:
        self.needs = self.needs_of(config)
        drafter: Any = torch.classes.trtspec.SuffixDrafter(
            config.max_draft_len,
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_cached_requests,
            config.suffix_decoding_max_cached_tokens,
            config.suffix_decoding_max_spec_factor,
            config.suffix_decoding_max_spec_offset,
            config.suffix_decoding_min_token_prob,
            config.suffix_decoding_tree,
        )
        # Looking the methods up costs as much as much of what they do.
        self._prepare, self._on_accepted = drafter.prepare, drafter.on_accepted
        self._release, self._live_requests = drafter.release, drafter.live_requests
        self._evict, self._sizes = drafter.evict, drafter.sizes

    @staticmethod
    def needs_of(config: SuffixDecodingConfig) -> DrafterNeeds:
        """The longest match allows the largest draft, and both fit into the tree's depth."""
        match = config.suffix_decoding_max_tree_depth - 1
        allowed = (
            config.suffix_decoding_max_spec_factor * match + config.suffix_decoding_max_spec_offset
        )
        nodes = max(int(min(allowed + 1e-6, config.max_draft_len)), 0)
        return DrafterNeeds(max_nodes=nodes, max_depth=min(nodes, match))

    @property
    def sizes(self) -> SuffixSizes:
        """Sizes of the trees."""
        return SuffixSizes(*self._sizes())

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """At most max_nodes nodes per item, as many as its match deserves. A node's score is the ln
        of its probability times m / (m + 1), as the reliability of a match grows with its length m.
        """
        return DraftBatch(self._prepare(batch.table))

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Add what was fed of prompts and what was emitted."""
        self._on_accepted(batch.table, result.start)
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        """Drop the request's own tree; its response stays in the cache. Unknown ids are ignored."""
        self._release(request_id)

    def evict(self, request_id: int) -> bool:
        """Drop a stored response; whether there was one."""
        return bool(self._evict(request_id))

    @property
    def live_requests(self) -> Set[int]:
        return set(self._live_requests())
