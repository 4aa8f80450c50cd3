"""The graphs of Medusa heads."""

from __future__ import annotations

from trtspec.backends.parts import OpenParts, Part, PartRole, RowMethod
from trtspec.models.signature import heads_signature
from trtspec.speculative.draft_kind import DRAFT_ROLLOUT, Built, DraftGraph, DraftKind
from trtspec.speculative.marginals import MarginalTree
from trtspec.speculative.medusa.network import MedusaHeads
from trtspec.speculative.medusa.rollout import HeadsRollout
from trtspec.speculative.medusa.shape import MedusaConfig
from trtspec.speculative.medusa.stand_in import MarginalsNetwork

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
