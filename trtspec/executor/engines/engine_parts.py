"""EngineSessions and NetworkFacts: what a `ModelEngine` runs and knows about it."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.backends.session import Session
from trtspec.executor.engines.pass_rollout import PassRollout
from trtspec.models.layer_facts import PassBytes

NOTHING_READ = PassBytes()


@dataclass(frozen=True)
class EngineSessions:
    """The graphs of one network.

    model: of a target, or of a draft that is fed through it. replay: of a target with recurrent
    states, see `StateMoves`. rollout: of a draft, all its steps. step: a rollout of the first step
    only. passes: of a draft without these, one pass at a time. A draft without ``model`` is fed by
    a pass, by ``step``, or by a one-step ``rollout``.
    """

    model: Session | None = None
    replay: Session | None = None
    rollout: Session | None = None
    step: Session | None = None
    passes: PassRollout | None = None

    @property
    def drafts(self) -> bool:
        """Whether there is a rollout."""
        return self.rollout is not None or self.passes is not None


@dataclass(frozen=True)
class NetworkFacts:
    """What an engine knows about its network.

    vocab_size: ids that it reads. pass_bytes: weights that one pass reads. rollout_passes: passes
    of a rollout. hidden_in: width of the target's hidden states that a rollout reads, 0 for none.
    verifies: the session samples and accepts, see `EngineInputs`. has_adapters: each row's adapter
    is an input.
    """

    vocab_size: int
    pass_bytes: PassBytes = NOTHING_READ
    rollout_passes: int = 1
    hidden_in: int = 0
    verifies: bool = False
    has_adapters: bool = False
