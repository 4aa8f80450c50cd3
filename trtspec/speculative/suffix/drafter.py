"""Suffix decoding: drafts continue the text as it, or an earlier response, went on before."""

from __future__ import annotations

from collections.abc import Set

from trtspec.executor.drafter import Drafter, DrafterNeeds
from trtspec.executor.request import Request
from trtspec.executor.step_plan import StepPlan
from trtspec.executor.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.suffix.options import SuffixDecodingConfig
from trtspec.speculative.suffix.trees import SuffixCache, SuffixOptions


class SuffixDrafter(Drafter):
    """Drafter over a `SuffixCache`; no model, no K/V.

    The text of a request enters its own tree while its prompt is prefilled, and both trees as its
    tokens are accepted. A response stays in the cache when its request finishes, is aborted or is
    preempted; a preempted one goes on with it.
    """

    def __init__(self, config: SuffixDecodingConfig) -> None:
        self.needs = self.needs_of(config)
        self._options = SuffixOptions(
            factor=config.suffix_decoding_max_spec_factor,
            offset=config.suffix_decoding_max_spec_offset,
            min_prob=config.suffix_decoding_min_token_prob,
            tree=config.suffix_decoding_tree,
        )
        self._cache = SuffixCache(
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_cached_requests,
            config.suffix_decoding_max_cached_tokens,
        )
        self._known: dict[int, int] = {}  # request id -> tokens of its text in the cache

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
    def cache(self) -> SuffixCache:
        """The trees, for their sizes."""
        return self._cache

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """Of each item at most max_nodes nodes, as many as its match deserves."""
        most_nodes: list[int] = []
        for item in batch.items:
            depth = item.request.draft_depth
            nodes = min(item.max_nodes, self.needs.max_nodes) if depth > 0 else 0
            if not self._options.tree:
                nodes = min(nodes, depth)
            if nodes > 0:
                self._take_in(item.request, len(item.request.tokens))
            most_nodes.append(nodes)
        if max(most_nodes, default=0) <= 0:
            return DraftBatch.none(len(batch.items))
        requests = [item.request for item in batch.items]
        return self._cache.draft(
            [request.id for request in requests],
            most_nodes,
            [request.end_tokens for request in requests],
            [request.draft_depth for request in requests],
            self._options,
        )

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Take in what was fed of prompts and what was emitted."""
        for i, item in enumerate(batch.items):
            # A prompt chunk has taken the text to its end; a step that emits, to the newest token.
            emits = result.num_emitted(i) > 0
            end = len(item.request.tokens) if emits else item.start + item.num_rows
            self._take_in(item.request, end)
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        """Drop the request's own tree; its response stays in the cache. Unknown ids are ignored."""
        self._cache.stop(request_id)
        self._known.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        return self._known.keys()

    def _take_in(self, request: Request, end: int) -> None:
        """Append the text up to token `end`."""
        known = self._known.get(request.id)
        if known is None:
            self._cache.start(request.id)
            known = 0
        self._known[request.id] = max(known, end)
        prompt = request.num_prompt_tokens
        if known < min(end, prompt):
            self._cache.append_prompt(request.id, request.tokens[known : min(end, prompt)])
            known = min(end, prompt)
        if known < end:
            self._cache.append_response(request.id, request.tokens[known:end])
