"""Which engines launch steps before the result of earlier ones is read, and which cannot."""

from __future__ import annotations

from trtspec.config.decoding import DecodingConfig
from trtspec.engine.folder import EngineConfig
from trtspec.errors import ConfigError
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.resident.target import ResidentTarget
from trtspec.executor.step.drafter import Drafter
from trtspec.log import logger


def resident_target(
    steps_ahead: int,
    engine: EngineConfig,
    target: ModelEngine,
    drafter: Drafter,
    speculation: DecodingConfig | None,
    max_batch_size: int,
) -> ResidentTarget:
    """The target of an open engine as one that keeps its running requests on the device.

    ConfigError, saying why, if it cannot.
    """
    rollout = drafter.device_rollout()
    why = None
    if engine.target.ranks > 1:
        why = f"the {engine.target.ranks} ranks of this target are told the rows of every step"
    elif target.layout.is_slots:
        why = f"backend {engine.backend.name!r} pads its rows on the host"
    elif target.caches.keeps_states:
        why = "the recurrent states of this target are moved by the host"
    elif speculation is not None and rollout is None:
        why = f"the drafts of method {speculation.method!r}, with these options, need the host"
    elif (
        rollout is not None
        and rollout.pending is None
        and rollout.engine.vocab_size < target.vocab_size
    ):
        why = (
            f"the draft has {rollout.engine.vocab_size} of the target's {target.vocab_size} tokens"
        )
    elif speculation is not None and (
        speculation.simulate_acceptance is not None or speculation.typical_acceptance is not None
    ):
        why = "acceptance other than the target's own is decided on the host"
    if why is not None:
        raise ConfigError(
            f"steps_ahead={steps_ahead}: {why}, so that no step can be launched before the result "
            "of the last one is read; leave steps_ahead out"
        )
    if engine.build.device == "cpu":
        logger.info(
            "steps_ahead=%d saves no time on a CPU, which runs the host's work and the engine's "
            "in turn",
            steps_ahead,
        )
    resident = ResidentTarget(target, max_batch_size, drafter.needs, rollout)
    resident.warm_up()
    return resident
