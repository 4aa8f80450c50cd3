"""The rollout of MTP modules that each draft at a depth of their own: a chain, one engine call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.models.rows import Caches, PackedRows
from trtspec.ops.sampling import SamplingColumns, draft_candidates
from trtspec.speculative.mtp.network import ModuleStack


class VanillaRollout(nn.Module):
    """Draft one token with each module (TensorRT-LLM's *vanilla* MTP).

    Every module runs once over the same rows, those of the request's own positions; nothing is
    written after them. The draft of module i is the token that the request's last row feeds to
    module i + 1, the row before it to module i + 2, and so on.

    A row is final in all modules once the tokens that it reads are known: the last ``num_modules -
    1`` rows of each request are not, and must be fed again when they are. In a wider tree each path
    would need such rows of its own.
    """

    def __init__(self, model: ModuleStack) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        last_rows: Tensor,
        sampling: SamplingColumns,
        hidden_in: Tensor,
        caches: Caches,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs and outputs are those of `TreeRollout`, for a chain: ``tokens``, ``parents`` and
        ``scores [B, num_modules]``, a score being the cumulative log-softmax of the noise-perturbed
        draft distributions."""
        request = _request_of_rows(rows)
        row = torch.arange(input_ids.shape[0], device=input_ids.device)
        is_last = row == last_rows[request]
        # Rows over slots lie on the host, and what is drafted does not.
        request, is_last, last_rows, ids = (
            x.to(hidden_in.device, non_blocking=True)
            for x in (request, is_last, last_rows, input_ids)
        )
        features: Tensor | None = hidden_in
        tokens, gains = [], []
        count = len(self.model.depths)
        for depth in range(count):
            module, own = self.model.at(depth, caches)
            features, ready = module.draft(ids, features, rows, own)
            columns = sampling._replace(output_index=sampling.output_index + depth)
            logits = module.head(ready[last_rows])
            drafted, gain = draft_candidates(logits, *columns, module.token_map, 1)
            tokens.append(drafted)
            # Rounding lets a certain token's exceed 0 by 1e-16; it would then outrank its parent.
            gains.append(gain.clamp(max=0))
            ids = torch.where(is_last, drafted[:, 0][request], ids.roll(-1))
        parents = torch.arange(-1, count - 1, device=last_rows.device, dtype=torch.int32)
        parents = parents.expand(last_rows.shape[0], count).contiguous()
        return torch.cat(tokens, 1), parents, torch.cat(gains, 1).cumsum(1)


def _request_of_rows(rows: PackedRows) -> Tensor:
    """The request of each row ``[T] i64``; padding after the last one counts as the last's."""
    row = torch.arange(rows.positions.shape[0], device=rows.positions.device)
    ends = rows.query_start[1:]
    request = torch.searchsorted(ends, row.to(ends.dtype), right=True)
    return request.clamp(max=ends.shape[0] - 1)
