"""The graphs of Medusa heads."""

from __future__ import annotations

from torch import Tensor, nn

from trtspec.backends.parts import OpenParts, Part, PartRole, RowMethod
from trtspec.backends.session import GraphSession
from trtspec.models.signature import heads_signature
from trtspec.speculative.draft_kind import DRAFT_ROLLOUT, Built, DraftGraph, DraftKind
from trtspec.speculative.marginals import MarginalTree
from trtspec.speculative.medusa.network import MedusaHeads
from trtspec.speculative.medusa.rollout import HeadsRollout
from trtspec.speculative.medusa.shape import MedusaConfig


class MarginalsNetwork(nn.Module):
    """A draft network without K/V, for a rollout (see `trtspec.speculative.medusa.rollout`)."""

    token_map: Tensor | None = None

    def __init__(self, session: GraphSession) -> None:
        super().__init__()
        self._session = session

    def marginals(self, hidden: Tensor) -> Tensor:
        """See `MarginalNetwork.marginals`."""
        return self._session.run([hidden.contiguous()])[0]


_MARGINALS = "marginals"


def _rollout(config: MedusaConfig, built: Built) -> DraftGraph:
    return DraftGraph(
        lambda module: HeadsRollout(module, built.tree),
        lambda: heads_signature(built.dtype, config.hidden_size),
    )


def _parts(config: MedusaConfig, states: int) -> tuple[Part, ...]:
    method = RowMethod(_MARGINALS, states, "hidden_in", "marginals")
    return (Part(PartRole.METHOD, _MARGINALS, None, method=method),)


def _stand_in(config: MedusaConfig, parts: OpenParts) -> MarginalsNetwork:
    return MarginalsNetwork(parts.session(_MARGINALS))


MEDUSA_HEADS = DraftKind(
    MedusaConfig,
    __name__,
    lambda config, target, dtype, formats: MedusaHeads(config, target, dtype, formats=formats),
    MedusaHeads.matrices,
    lambda module, draft, target: module.load_weights(draft),
    {DRAFT_ROLLOUT: _rollout},
    _parts,
    _stand_in,
    levels=MarginalTree,
)
