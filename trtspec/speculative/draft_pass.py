"""DraftPass: one pass of a rollout as a module, for rollouts that are loops of calls."""

from __future__ import annotations

from torch import Tensor, nn

from trtspec.models.rows import Caches, PackedRows
from trtspec.ops.sampling import SamplingColumns
from trtspec.speculative.tree_rollout import DraftNetwork, scored_children


class DraftPass(nn.Module):
    """Feeds accepted rows as well as the rows of every depth, for a network that reads only
    tokens."""

    def __init__(self, model: DraftNetwork, topk: int) -> None:
        """``model`` is also a module."""
        super().__init__()
        self.model = model
        self.topk = topk

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        wanted: Tensor,
        sampling: SamplingColumns,
        caches: Caches,
    ) -> tuple[Tensor, Tensor]:
        """The best children of the rows ``wanted [R] i64``, whose ``sampling`` columns are ``[R]``:
        ``ids [R, k] i64`` of the target, best first, and ``gains [R, k] f32``, the log probability
        of each (see `trtspec.ops.sampling`)."""
        _, ready = self.model.draft(input_ids, None, rows, caches, wanted)
        logits = self.model.head(ready)
        return scored_children(logits, sampling, self.model.token_map, self.topk)
