"""The graphs of the toy's network."""

from __future__ import annotations

from torch import Tensor, nn

from trtspec.backends.parts import OpenParts, Part, PartRole, RowMethod
from trtspec.models.signature import heads_signature
from trtspec.speculative.draft_kind import DRAFT_ROLLOUT, Built, DraftGraph, DraftKind

from .network import ToyDraft
from .rollout import ToyRollout
from .shape import ToyConfig

STEP, HEAD = "step", "head"


class ToyParts(nn.Module):
    """What stands in for `ToyDraft`: its methods are graphs of their own."""

    def __init__(self, parts: OpenParts) -> None:
        super().__init__()
        self._step, self._head = parts.session(STEP), parts.session(HEAD)
        self._embedded = parts.tensor("target.embed.weight")

    def embedding(self, ids: Tensor) -> Tensor:
        assert self._embedded is not None, "the toy's targets tie no head"
        return self._embedded[ids]

    def step(self, both: Tensor) -> Tensor:
        # What a session gives is valid until its next call.
        return self._step.run([both.contiguous()])[0].clone()

    def head(self, state: Tensor) -> Tensor:
        return self._head.run([state.contiguous()])[0]


def _rollout(config: ToyConfig, built: Built) -> DraftGraph:
    return DraftGraph(
        lambda module: ToyRollout(module, built.tree.num_steps),
        lambda: heads_signature(built.dtype, config.hidden_size, reads_roots=True),
        passes=built.tree.num_steps,
    )


def _parts(config: ToyConfig, states: int) -> tuple[Part, ...]:
    step = RowMethod(STEP, 2 * config.hidden_size, "both", "state")
    head = RowMethod(HEAD, config.hidden_size, "state", "logits")
    return tuple(Part(PartRole.METHOD, each.name, None, method=each) for each in (step, head))


TOY_NETWORK = DraftKind(
    ToyConfig,
    __name__,
    ToyDraft,
    ToyDraft.matrices,
    ToyDraft.load_weights,
    {DRAFT_ROLLOUT: _rollout},
    _parts,
    lambda config, parts: ToyParts(parts),
    reads_roots=True,
)
