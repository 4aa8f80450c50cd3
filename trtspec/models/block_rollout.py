"""The rollout of a network that guesses a whole block in one pass over packed rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.models.attention import PackedRows, flat_slots
from trtspec.models.dflash import BlockRows, DFlashDraft, unseeing
from trtspec.models.marginals import MarginalTree
from trtspec.models.rollout import packed_bits
from trtspec.ops.sampling import SamplingColumns


class BlockRollout(nn.Module):
    """One pass over the accepted rows and a block behind each request; its slots are the depths of
    a `MarginalTree`.

    A block is as long as the network was trained with, however few of its slots are asked for. Its
    keys and values lie behind the accepted ones, and are written again, of the target's states,
    once tokens are accepted.
    """

    def __init__(self, model: DFlashDraft, shape: TreeShape, tokens_per_block: int) -> None:
        super().__init__()
        self.model = model
        self.levels = MarginalTree(shape)
        self.num_steps = shape.num_steps
        self.tokens_per_block = tokens_per_block

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        last_rows: Tensor,
        sampling: SamplingColumns,
        hidden_in: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the accepted rows, then draft.

        As `TreeRollout.forward` over a feature network: row p carries the target's state at
        position p, ``hidden_in [T, n * H_t]``, and the token after it, of which only each request's
        last one is read: its root.
        """
        config = self.model.config
        batch, size = last_rows.shape[0], config.block_size
        context = self.model.fuse(hidden_in)
        masks = torch.full((batch, size - 1), config.mask_token_id, device=last_rows.device)
        tokens = torch.cat((input_ids[last_rows][:, None], masks), dim=1)
        block = self._block(rows, rows.positions[last_rows] + 1)
        ready = self.model.draft(tokens.reshape(-1), context, block, k_caches, v_caches)
        first = 0 if config.anchor_predicts else 1
        slots = ready.view(batch, size, -1)[:, first : first + self.num_steps]
        logits = self.model.head(slots.reshape(batch * self.num_steps, -1))
        marginals = logits.view(batch, self.num_steps, -1)
        tree: tuple[Tensor, Tensor, Tensor] = self.levels(marginals, self.model.token_map, sampling)
        return tree

    def _block(self, rows: PackedRows, root_position: Tensor) -> BlockRows:
        """The rows of the blocks, one request after the other, and behind them ``rows``, as many
        requests again. Padding stays at the end."""
        size, words = self.model.config.block_size, rows.tree_mask.shape[1]
        batch, device = root_position.shape[0], root_position.device
        offset = torch.arange(size, device=device)
        positions = root_position[:, None] + offset
        own = packed_bits(offset, words)  # [size, words]
        everyone = own.sum(0, keepdim=True).expand(size, words)
        so_far = own.cumsum(0)
        starts = torch.arange(batch, device=device, dtype=torch.int32) * size
        blind = unseeing(rows)

        def with_context(block: Tensor, context: Tensor) -> Tensor:
            return torch.cat((block, context))

        def mask(bits: Tensor) -> Tensor:
            return with_context(bits.repeat(batch, 1), blind.tree_mask)

        packed = PackedRows(
            positions=with_context(positions.reshape(-1), rows.positions),
            slot_mapping=with_context(
                flat_slots(rows.block_tables, positions, self.tokens_per_block).reshape(-1),
                rows.slot_mapping,
            ),
            block_tables=with_context(rows.block_tables, rows.block_tables),
            query_start=with_context(starts, rows.query_start + batch * size),
            # All of the context is written when the blocks' rows look at it.
            context_lens=with_context(root_position.to(torch.int32), blind.context_lens),
            is_tree=with_context(blind.is_tree, blind.is_tree),
            tree_mask=mask(everyone),
        )
        return BlockRows(packed, mask(so_far))
