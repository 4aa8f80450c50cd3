"""The whole rollout of a draft as one module: every depth, beam and rerank in one engine call."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.models.rows import Caches, PackedRows, flat_slots, rows_behind
from trtspec.ops.build_tree import TreeBeam
from trtspec.ops.sampling import SamplingColumns, draft_candidates
from trtspec.speculative.tree_levels import Levels, make_levels


class DraftNetwork(Protocol):
    """What a rollout drives: a language model, or a network that reads the target's hidden
    states."""

    @property
    def token_map(self) -> Tensor | None:
        """The target's id of each column of the logits ``[V_d] i64``; None: the column itself."""
        ...

    def draft(
        self,
        input_ids: Tensor,
        features: Tensor | None,
        rows: PackedRows,
        caches: Caches,
        kept: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """One pass over rows: the features ``[R, H]`` that a child of each row is fed (None for a
        network that reads none), and the rows ``[R, H]`` that `head` reads, both for the rows
        ``kept [R] i64``, or for all T."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Rows ``[R, H]`` -> logits ``[R, V_d] f32``."""
        ...


class FeatureNetwork(DraftNetwork, Protocol):
    """A draft network that reads the target's hidden states."""

    def fuse(self, hidden_in: Tensor) -> Tensor:
        """The target's hidden states ``[T, n * H_t]`` -> the features ``[T, H]`` of a first
        pass."""
        ...


class TreeRollout(nn.Module):
    """Expand a token tree with a draft network; a chain is a tree of width one.

    Depth 1 holds the best children of the root; each further depth feeds some nodes of the last one
    (the beam) and records the best children of each. A dynamic tree (EAGLE-2's expand and rerank,
    Li et al. 2024) feeds the k best nodes and in the end keeps the N - 1 best of all candidates; a
    static one feeds and keeps the nodes that its choices name. A score is the cumulative
    log-softmax of the noise-perturbed draft distribution (coupled speculative decoding, Daliri et
    al. 2024), so a child never scores above its parent and the kept nodes are closed under parents;
    ties go to the earlier candidate.
    """

    model: DraftNetwork

    def __init__(self, model: DraftNetwork, shape: TreeShape, tokens_per_block: int) -> None:
        """``model`` is also a module."""
        super().__init__()
        self.model = model
        self.levels: Levels = make_levels(shape)
        self.tokens_per_block = tokens_per_block

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        last_rows: Tensor,
        sampling: SamplingColumns,
        hidden_in: Tensor | None,
        caches: Caches,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Feed the accepted rows, then roll out.

        ``input_ids [T] i64`` and ``rows`` are the packed rows of an engine call (tokens that the
        draft cache lacks, each request's root last). ``last_rows [B] i64`` is the row of each
        request's root; ``sampling`` holds columns ``[B]``, with ``output_index`` that of the first
        drafted token. ``hidden_in [T, n * H_t]`` are the target's states, for a network that reads
        them.

        Returns ``tokens [B, N-1] i64`` (the target's ids), ``parents [B, N-1] i32`` (-1 = child of
        the root, always smaller than the node's own index) and ``scores [B, N-1] f32``; a score of
        -inf marks a node that the filters exclude.
        """
        batch, fused = last_rows.shape[0], None
        if hidden_in is not None:
            fused = cast(FeatureNetwork, self.model).fuse(hidden_in)
        features, ready = self.model.draft(input_ids, fused, rows, caches, last_rows)
        if features is not None:
            features = features[:, None]  # [B, 1, H]: of the rows last fed
        roots = self.roots(rows, last_rows)
        fed = 0

        def expand(depth: int, beam: TreeBeam) -> tuple[Tensor, Tensor]:
            nonlocal features, fed
            width = beam.tokens.shape[1]
            if features is not None:
                lanes = beam.lanes[:, :, None].expand(-1, -1, features.shape[2])
                features = features.gather(1, lanes).reshape(batch * width, -1)
            beam_rows = self.beam_rows(roots, depth, fed, beam.seen)
            features, ready = self.model.draft(beam.tokens.reshape(-1), features, beam_rows, caches)
            if features is not None:
                features = features.reshape(batch, width, -1)
            fed += width
            return self.best_children(ready, columns_at(sampling, depth, width), depth)

        first = self.best_children(ready, sampling, 0)
        return self.levels.grow(first, expand, rows.tree_mask.shape[1])

    def best_children(
        self, ready: Tensor, columns: SamplingColumns, depth: int
    ) -> tuple[Tensor, Tensor]:
        """The best children of the rows ``ready [R, H]`` (the head's input) fed at a depth, 0 for
        the root, and the log probability of each, as `Children` takes them."""
        logits, count = self.model.head(ready), self.levels.branching[depth]
        return draft_candidates(logits, *columns, self.model.token_map, count)

    def roots(self, rows: PackedRows, last_rows: Tensor) -> PackedRows:
        """Each request's root, the row ``last_rows[b]``, as `beam_rows` needs it: ``context_lens
        [B] i64`` counts the cached tokens up to and including it."""
        # Rollout rows lie behind the accepted rows: row j of the rollout at cache offset j.
        context = rows_behind(rows, last_rows)
        return rows._replace(
            positions=rows.positions[last_rows],
            context_lens=context,
            is_tree=torch.ones_like(context, dtype=torch.bool),
        )

    def beam_rows(self, roots: PackedRows, depth: int, begin: int, ancestors: Tensor) -> PackedRows:
        """The rows of the nodes fed at a depth, ``width`` per request: they are placed after its
        root from ``begin`` on and see their ``ancestors [B, width, W] i64``."""
        batch, width, words = ancestors.shape
        context = roots.context_lens
        offset = begin + torch.arange(width, device=context.device)
        starts = torch.arange(batch + 1, device=context.device, dtype=torch.int32) * width
        return PackedRows(
            positions=(roots.positions + depth).repeat_interleave(width),
            slot_mapping=flat_slots(
                roots.block_tables, context[:, None] + offset, self.tokens_per_block
            ).reshape(-1),
            block_tables=roots.block_tables,
            query_start=starts,
            context_lens=context.to(torch.int32),
            is_tree=roots.is_tree,
            tree_mask=ancestors.reshape(-1, words),
        )


def scored_children(
    logits: Tensor, columns: SamplingColumns, token_map: Tensor | None, count: int
) -> tuple[Tensor, Tensor]:
    """The best ``count`` children of rows with logits ``[R, V_d] f32``, and the log probability of
    each, at most 0."""
    ids, gains = draft_candidates(logits, *columns, token_map, count)
    # Rounding lets a certain child's exceed 0 by 1e-16; it would then outrank its parent.
    return ids, gains.clamp(max=0)


def columns_at(sampling: SamplingColumns, depth: int, width: int) -> SamplingColumns:
    """Columns ``[B * width]`` for the children of ``width`` nodes of a depth, per request; the
    columns ``[B]`` are those of depth 1."""
    deeper = sampling._replace(output_index=sampling.output_index + depth)
    return SamplingColumns(*(x.repeat_interleave(width) for x in deeper))


def packed_bits(offset: Tensor, words: int) -> Tensor:
    """Packed masks ``[width, words]`` with bit ``offset[i]`` set in row i."""
    word = torch.arange(words, device=offset.device)
    bit = torch.ones_like(offset) << (offset % 64)
    return torch.where(word == (offset // 64)[:, None], bit[:, None], 0)
