"""The rollout of a network that guesses every depth in one pass, using rows of a mask token."""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.models.rows import Caches, PackedRows, flat_slots, rows_behind
from trtspec.ops.sampling import SamplingColumns
from trtspec.speculative.marginals import MarginalTree
from trtspec.speculative.tree_rollout import DraftNetwork, FeatureNetwork


class MaskedFeatureNetwork(FeatureNetwork, Protocol):
    """A network over the target's hidden states with a learned substitute for unknown ones."""

    @property
    def mask_hidden(self) -> Tensor:
        """What mask rows read instead of the target's hidden states ``[n * H_t]``."""
        ...


class MaskedRows(NamedTuple):
    """Packed rows with mask rows after each request's own.

    ``source [T'] i64``: the given row that each is a copy of; a mask is a copy of its request's
    root. ``is_mask [T'] bool``. ``rows``: the places of all of them. ``guesses [B, D] i64``: for
    each request the root's row and its masks, which predict the tokens of depth 1, 2, ...
    """

    source: Tensor
    is_mask: Tensor
    rows: PackedRows
    guesses: Tensor


class ParallelRollout(nn.Module):
    """Draft D tokens in one pass: the root's row predicts the first, D - 1 mask rows the others.

    A request's masks follow its accepted rows, at the next positions, and are causal rows like
    those. Their K/V follow the accepted rows', to be overwritten by the next pass. No mask sees
    another one's guess, so the tree is made from marginals, as in `HeadsRollout`. (PARD: An et al.,
    arXiv 2504.18583; P-EAGLE: arXiv 2602.01469.)
    """

    model: DraftNetwork

    def __init__(
        self, model: DraftNetwork, shape: TreeShape, tokens_per_block: int, mask_token: int
    ) -> None:
        """``model`` is also a module, a `MaskedFeatureNetwork` if it reads hidden states;
        ``mask_token``: the id that its mask rows read."""
        super().__init__()
        self.model = model
        self.levels = MarginalTree(shape)
        self.num_masks = shape.num_steps - 1
        self.tokens_per_block = tokens_per_block
        self.mask_token = mask_token

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        last_rows: Tensor,
        sampling: SamplingColumns,
        hidden_in: Tensor | None,
        caches: Caches,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Feed the accepted rows followed by masks; arguments and results are those of
        `TreeRollout.forward`. The draft cache is written at D - 1 positions after each root."""
        masked = self._with_masks(rows, last_rows)
        ids = torch.where(masked.is_mask, self.mask_token, input_ids[masked.source])
        features = None
        if hidden_in is not None:
            states = self._states(hidden_in, masked)
            features = cast(FeatureNetwork, self.model).fuse(states)
        guesses = masked.guesses.flatten()
        _, ready = self.model.draft(ids, features, masked.rows, caches, guesses)
        logits = self.model.head(ready)
        marginals = logits.view(*masked.guesses.shape, -1)
        tree: tuple[Tensor, Tensor, Tensor] = self.levels(marginals, self.model.token_map, sampling)
        return tree

    def _states(self, hidden_in: Tensor, masked: MaskedRows) -> Tensor:
        """The target's hidden states that the rows read ``[T', n * H_t]``."""
        network = cast(MaskedFeatureNetwork, self.model)
        source, is_mask = (
            x.to(hidden_in.device, non_blocking=True) for x in (masked.source, masked.is_mask)
        )
        return torch.where(is_mask[:, None], network.mask_hidden, hidden_in[source])

    def _with_masks(self, rows: PackedRows, last_rows: Tensor) -> MaskedRows:
        """Each request's rows followed by its masks; padding stays at the end. Everything is
        gathered: the source of a new row follows from where its request begins."""
        masks, device = self.num_masks, last_rows.device
        requests = torch.arange(last_rows.shape[0], device=device)
        index = torch.arange(rows.positions.shape[0] + last_rows.shape[0] * masks, device=device)
        shift = torch.arange(last_rows.shape[0] + 1, device=device) * masks
        starts = rows.query_start + shift
        ends = starts[1:]
        before = (index[:, None] >= ends).sum(1)  # requests that end before the row
        request = before.clamp(max=last_rows.shape[0] - 1)
        place = index - (ends[request] - masks)  # from 0: among the masks of the request
        is_mask = (place >= 0) & (place < masks)
        source = torch.where(is_mask, last_rows[request], index - before * masks)
        ahead = torch.arange(1, masks + 1, device=device)
        positions = rows.positions[source] + torch.where(is_mask, place + 1, 0)
        slots = rows.slot_mapping[source]
        if masks:
            behind = rows_behind(rows, last_rows)[:, None] + ahead - 1
            behind = flat_slots(rows.block_tables, behind, self.tokens_per_block)
            own = behind[request, place.clamp(min=0, max=masks - 1)]
            slots = torch.where(is_mask, own, slots)
        first = last_rows + requests * masks
        return MaskedRows(
            source,
            is_mask,
            PackedRows(
                positions=positions,
                slot_mapping=slots,
                block_tables=rows.block_tables,
                query_start=starts.to(torch.int32),
                context_lens=rows.context_lens,
                is_tree=rows.is_tree,
                tree_mask=rows.tree_mask[source],
            ),
            first[:, None] + torch.arange(masks + 1, device=device),
        )


class RootStateRollout(ParallelRollout):
    """The same for a network whose masks read what their request's root reads."""

    def _states(self, hidden_in: Tensor, masked: MaskedRows) -> Tensor:
        return hidden_in[masked.source.to(hidden_in.device, non_blocking=True)]
