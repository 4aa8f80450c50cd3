"""RolloutDrafter: drafts from an engine that rolls out a whole tree for the batch in one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.executor.batch import ScheduledBatch
from trtspec.executor.drafter import Accepted, DrafterNeeds
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.packing import RowGroup
from trtspec.executor.request import Request
from trtspec.executor.resources import ResourceManager
from trtspec.executor.sampler import SamplingRows
from trtspec.ops.tree import TokenTree


class RolloutDrafter(ABC):
    """What drafters with an engine share: one rollout for all, and trees cut to each request.

    The first pass of a rollout feeds every row that the draft cache lacks, so the rollout's own
    rows are simply discarded: re-reading an accepted token costs one more row in a pass that reads
    all weights anyway.
    """

    def __init__(
        self,
        engine: ModelEngine,
        resources: ResourceManager,
        config: TreeDecodingConfig,
        needs: DrafterNeeds,
    ) -> None:
        """``config`` may ask for fewer steps or nodes than ``engine`` rolls out: trees are cut."""
        self.needs = needs
        self._engine = engine
        self._resources = resources
        self._sampling = SamplingRows()

    def prepare_draft_tokens(self, batch: ScheduledBatch) -> None:
        """Give every generation request of the batch its tree, with one rollout for all."""
        items = [
            item for item in batch.items if item.max_nodes > 0 and self._can_draft(item.request)
        ]
        if not items:
            return
        requests = [item.request for item in items]
        groups, hidden = self._first_pass(requests)
        sampling = self._sampling.tensors(requests, [TokenTree.empty()] * len(requests))
        rollout = self._engine.rollout(groups, sampling, hidden)
        tokens, parents, scores = (x.numpy() for x in rollout)
        for i, item in enumerate(items):
            request = item.request
            tree = _included(tokens[i], parents[i], scores[i])
            # What follows an end token is never emitted, and the end itself needs no draft.
            tree = tree.without({*request.eos_token_ids, *request.params.stop_token_ids})
            depth = min(self.needs.max_depth, request.remaining_tokens - 1)
            request.draft = tree.cut(max_depth=depth, max_nodes=item.max_nodes)

    @abstractmethod
    def on_accepted(self, batch: ScheduledBatch, accepted: Sequence[Accepted]) -> list[int]:
        """See `Drafter.on_accepted`."""

    @abstractmethod
    def release(self, request_id: int) -> None:
        """See `Drafter.release`."""

    @abstractmethod
    def _can_draft(self, request: Request) -> bool:
        """Whether the first pass has something to feed for a generating request."""

    @abstractmethod
    def _first_pass(self, requests: Sequence[Request]) -> tuple[list[RowGroup], Tensor | None]:
        """The rows that the draft cache lacks, and the target's states of them if they are read."""


def rollout_needs(config: TreeDecodingConfig, reads_hidden: bool) -> DrafterNeeds:
    """Known before any engine is loaded."""
    tree = config.tree
    return DrafterNeeds(
        max_nodes=tree.num_nodes,
        max_depth=min(tree.num_steps, tree.num_nodes),
        draft_slots=tree.num_rollout_rows,
        has_draft_cache=True,
        reads_hidden=reads_hidden,
    )


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
