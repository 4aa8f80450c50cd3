"""DraftModelDrafter: a smaller language model drafts a chain or tree, one engine call a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trtspec.config.speculative import DraftTargetDecodingConfig
from trtspec.executor.batch import ScheduledBatch
from trtspec.executor.drafter import Accepted, DrafterNeeds
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.packing import RowGroup
from trtspec.executor.resources import ResourceManager
from trtspec.executor.sampler import SamplingRows
from trtspec.ops.tree import TokenTree


class DraftModelDrafter:
    """Rolls out a draft model behind the accepted tokens of every generating request.

    The first pass of a rollout feeds every token that the draft cache lacks (at least the root), so
    the rollout's own rows are simply discarded: re-reading an accepted token costs one more row in
    a pass that reads all weights anyway. Prompts are fed as the target consumes them.
    """

    def __init__(
        self, engine: ModelEngine, resources: ResourceManager, config: DraftTargetDecodingConfig
    ) -> None:
        """``config`` may ask for fewer steps or nodes than ``engine`` rolls out: trees are cut."""
        self.needs = self.needs_of(config)
        self._engine = engine
        self._resources = resources
        self._sampling = SamplingRows()
        self._fed: dict[int, int] = {}

    @staticmethod
    def needs_of(config: DraftTargetDecodingConfig) -> DrafterNeeds:
        """Known before any engine is loaded."""
        nodes = config.num_draft_tokens - 1
        return DrafterNeeds(
            max_nodes=nodes,
            max_depth=min(config.num_steps, nodes),
            draft_slots=config.topk * (config.num_steps - 1),
            has_draft_cache=True,
        )

    def prepare_draft_tokens(self, batch: ScheduledBatch) -> None:
        """Give every generation request of the batch its tree, with one rollout for all."""
        items = [item for item in batch.items if item.max_nodes > 0]
        if not items:
            return
        requests = [item.request for item in items]
        groups = []
        for request in requests:
            start = self._resources.draft_committed(request)
            self._fed[request.id] = len(request.tokens)
            blocks = self._resources.draft_block_table(request)
            groups.append(RowGroup(self._known(request.tokens[start:]), start, blocks))
        sampling = self._sampling.tensors(requests, [TokenTree.empty()] * len(requests))
        rollout = self._engine.rollout(groups, sampling)
        tokens, parents, scores = (x.numpy() for x in rollout)
        for i, item in enumerate(items):
            request = item.request
            tree = _included(tokens[i], parents[i], scores[i])
            # What follows an end token is never emitted, and the end itself needs no draft.
            tree = tree.without({*request.eos_token_ids, *request.params.stop_token_ids})
            depth = min(self.needs.max_depth, request.remaining_tokens - 1)
            request.draft = tree.cut(max_depth=depth, max_nodes=item.max_nodes)

    def on_accepted(self, batch: ScheduledBatch, accepted: Sequence[Accepted]) -> list[int]:
        """Feed prefill chunks to the draft; return the draft cache's length for each item."""
        lengths = []
        groups = []
        for item in batch.items:
            request = item.request
            start = self._resources.draft_committed(request)
            if item.is_generation:
                lengths.append(self._fed.pop(request.id, start))
                continue
            end = item.start + item.num_rows
            lengths.append(end)
            blocks = self._resources.draft_block_table(request)
            tokens = self._known(request.tokens[start:end])
            groups.append(RowGroup(tokens, start, blocks, last_logits=False))
        if groups:
            self._engine.forward(groups)
        return lengths

    def release(self, request_id: int) -> None:
        self._fed.pop(request_id, None)

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        """What the draft reads for ``tokens``: ids that only the target's padded embedding has
        become 0, which costs acceptance and nothing else."""
        limit = self._engine.vocab_size
        if max(tokens) < limit:
            return tokens
        return [token if token < limit else 0 for token in tokens]


def _included(
    tokens: npt.NDArray[np.int64], parents: npt.NDArray[np.int32], scores: npt.NDArray[np.float32]
) -> TokenTree:
    """The tree of the nodes with a finite score, that is, which the filters do not exclude; the
    parents of such a node have finite scores as well."""
    kept = np.flatnonzero(np.isfinite(scores))
    if len(kept) == len(tokens):
        return TokenTree(tokens, parents)
    new_index = np.full(len(tokens) + 1, -1, np.int32)  # the last entry maps the root to itself
    new_index[kept] = np.arange(len(kept), dtype=np.int32)
    return TokenTree(tokens[kept], new_index[parents[kept]])
