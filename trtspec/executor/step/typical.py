"""TypicalAcceptance: the lossy rule that accepts likely drafts instead of sampled ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trtspec.config.sampling import SamplingParams
from trtspec.config.typical_acceptance import TypicalAcceptanceConfig
from trtspec.executor.step.request import Request
from trtspec.ops.tree import TokenTree


class TypicalAcceptance:
    """Replaces equality with the target's sample by "the target finds it likely enough".

    A node is kept if its token has more than ``min(threshold, alpha * exp(-entropy))`` of the
    distribution that the target samples from (after penalties, temperature and filters), or if it
    is what the target sampled. The deepest path of kept nodes is accepted, the first among equals;
    the token after it is the target's own sample. At temperature 0 nothing changes. The text is NOT
    the target's: it depends on the drafts, and so on batch and tree.
    """

    def __init__(self, config: TypicalAcceptanceConfig) -> None:
        self.config = config

    def force(
        self, request: Request, tree: TokenTree, sampled: npt.NDArray[np.int64], logits: Tensor
    ) -> None:
        """See `HostRule.force`."""
        if not len(tree) or request.params.temperature == 0.0:
            return
        rows = tree.row_parents()[1:]  # the row that verifies each node
        kept = (sampled[rows] >= 0) & (self._likely(request, tree, rows, logits))
        kept |= sampled[rows] == tree.tokens
        best, parents = -1, tree.parents.tolist()
        for node, parent in enumerate(parents):
            kept[node] &= parent < 0 or kept[parent]
            if kept[node] and (best < 0 or tree.depths[node] > tree.depths[best]):
                best = node
        while best >= 0:
            sampled[rows[best]] = tree.tokens[best]
            best = parents[best]

    def _likely(
        self, request: Request, tree: TokenTree, rows: npt.NDArray[np.int32], logits: Tensor
    ) -> npt.NDArray[np.bool_]:
        """For each node, computed where the logits are, except for the answer."""
        verifying, place = np.unique(rows, return_inverse=True)
        own, which, tokens = (
            torch.from_numpy(index.astype(np.int64)).to(logits.device)
            for index in (verifying, place, tree.tokens)
        )
        probabilities = distribution(logits[own], request.params)
        entropy = torch.special.entr(probabilities).sum(-1)
        alpha, threshold = self.config.posterior_alpha, self.config.posterior_threshold
        least = (alpha * torch.exp(-entropy)).clamp(max=threshold)
        likely: npt.NDArray[np.bool_] = (probabilities[which, tokens] > least[which]).cpu().numpy()
        return likely


def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution that a row is sampled from at a temperature above 0: ``[R, V]`` float32
    logits -> probabilities, 0 for what the filters exclude (see `trtspec.ops.sampling`)."""
    scaled = logits / params.temperature
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    if params.top_k > 0:
        ordered[:, params.top_k :] = -torch.inf
    if params.top_p < 1.0:
        mass = ordered.softmax(-1).cumsum(-1)
        ordered[:, 1:][mass[:, :-1] >= params.top_p] = -torch.inf
    if params.min_p > 0.0:
        ordered[torch.exp(ordered - ordered[:, :1]) < params.min_p] = -torch.inf
    return torch.zeros_like(scaled).scatter(1, order, ordered.softmax(-1))
