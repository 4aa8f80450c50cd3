"""The rollout of a network that guesses a whole block in one pass over packed rows."""

from __future__ import annotations

from typing import ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.models.rows import Caches, PackedRows, flat_slots, rows_behind
from trtspec.ops.sampling import SamplingColumns
from trtspec.speculative.block.path_tree import PathTree, PathWalk
from trtspec.speculative.block.shape import BlockConfig
from trtspec.speculative.marginals import MarginalTree
from trtspec.speculative.tree_rollout import packed_bits


class BlockNetwork(Protocol):
    """What the rollout drives."""

    @property
    def token_map(self) -> Tensor | None:
        """See `DraftNetwork.token_map`."""
        ...

    def guess(
        self,
        input_ids: Tensor,
        blocks: PackedRows,
        hidden_in: Tensor,
        rows: PackedRows,
        caches: Caches,
    ) -> Tensor:
        """See `BlockDraft.guess`."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """See `DraftNetwork.head`."""
        ...


class PathNetwork(BlockNetwork, Protocol):
    """A block network whose guesses depend on the path through the block."""

    def walk(self, slots: Tensor, marginals: Tensor) -> PathWalk:
        """The walk over the rows that the head read ``[B, D, H]`` and its logits ``[B, D, V_d]
        f32``."""
        ...


class BlockRollout(nn.Module):
    """One pass over the accepted rows and a block after each request; its slots are the depths of a
    `MarginalTree`.

    A block is as long as in training, however few of its slots are used. Its keys and values are
    placed after the accepted ones, and are overwritten, from the target's hidden states, once
    tokens are accepted.
    """

    tree_class: ClassVar[type[nn.Module]] = MarginalTree

    model: BlockNetwork

    def __init__(
        self, model: BlockNetwork, config: BlockConfig, shape: TreeShape, tokens_per_block: int
    ) -> None:
        """``model``, also a module, is a network of shape ``config``."""
        super().__init__()
        self.model = model
        self.config = config
        self.levels = self.tree_class(shape)
        self.num_steps = shape.num_steps
        self.tokens_per_block = tokens_per_block

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        last_rows: Tensor,
        sampling: SamplingColumns,
        hidden_in: Tensor,
        caches: Caches,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the accepted rows, then draft.

        As `TreeRollout.forward` with a feature network: row p carries the target's hidden state at
        position p, ``hidden_in [T, n * H_t]``, and the token after it, which is only read for each
        request's last row: its root.
        """
        batch, size = last_rows.shape[0], self.config.block_size
        masks = torch.full((batch, size - 1), self.config.mask_token_id, device=last_rows.device)
        roots = input_ids[last_rows]
        tokens = torch.cat((roots[:, None], masks), dim=1).reshape(-1)
        blocks = self._blocks(rows, rows.positions[last_rows] + 1, rows_behind(rows, last_rows))
        ready = self.model.guess(tokens, blocks, hidden_in, rows, caches)
        first = 0 if self.config.anchor_predicts else 1
        slots = ready.view(batch, size, -1)[:, first : first + self.num_steps]
        logits = self.model.head(slots.reshape(batch * self.num_steps, -1))
        marginals = logits.view(batch, self.num_steps, -1)
        return self._tree(slots, marginals, roots, sampling)

    def _tree(
        self, slots: Tensor, marginals: Tensor, roots: Tensor, sampling: SamplingColumns
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The tree after ``roots [B] i64``; see `PathNetwork.walk`."""
        tree: tuple[Tensor, Tensor, Tensor] = self.levels(marginals, self.model.token_map, sampling)
        return tree

    def _blocks(self, rows: PackedRows, root_position: Tensor, context: Tensor) -> PackedRows:
        """The rows of the blocks, request after request, each seeing its whole block and the first
        ``context [B] i64`` rows of the cache."""
        size, words = self.config.block_size, rows.tree_mask.shape[1]
        batch, device = root_position.shape[0], root_position.device
        offset = torch.arange(size, device=device)
        positions, places = root_position[:, None] + offset, context[:, None] + offset
        everyone = packed_bits(offset, words).sum(0, keepdim=True)
        return PackedRows(
            positions=positions.reshape(-1),
            slot_mapping=flat_slots(rows.block_tables, places, self.tokens_per_block).reshape(-1),
            block_tables=rows.block_tables,
            query_start=torch.arange(batch + 1, device=device, dtype=torch.int32) * size,
            # All of the context is written when the blocks' rows look at it.
            context_lens=context.to(torch.int32),
            is_tree=torch.ones_like(root_position, dtype=torch.bool),
            tree_mask=everyone.repeat(batch * size, 1),
        )


class PathRollout(BlockRollout):
    """The same for a `PathNetwork`; its slots are the depths of a `PathTree`."""

    tree_class = PathTree

    def _tree(
        self, slots: Tensor, marginals: Tensor, roots: Tensor, sampling: SamplingColumns
    ) -> tuple[Tensor, Tensor, Tensor]:
        walk = cast(PathNetwork, self.model).walk(slots, marginals)
        tree: tuple[Tensor, Tensor, Tensor] = self.levels(
            walk, roots, self.model.token_map, sampling
        )
        return tree
