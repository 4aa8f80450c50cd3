"""Which drafter a speculative config stands for: one entry per method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.config.decoding import DecodingConfig, NGramDecodingConfig
from trtspec.config.extract_hidden_states import ExtractHiddenStatesConfig
from trtspec.config.medusa_decoding import MedusaDecodingConfig
from trtspec.config.mtp_decoding import MtpDecodingConfig
from trtspec.config.suffix_decoding import SuffixDecodingConfig
from trtspec.config.tree_decoding import (
    DraftTargetDecodingConfig,
    Eagle3DecodingConfig,
    EagleDecodingConfig,
)
from trtspec.errors import ConfigError
from trtspec.executor.drafter import Drafter, DrafterNeeds
from trtspec.executor.heads_engine import HeadsEngine
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.resources import ResourceManager
from trtspec.speculative.draft_model import DraftModelDrafter
from trtspec.speculative.eagle import EagleDrafter
from trtspec.speculative.extract_hidden_states import ExtractHiddenStatesDrafter
from trtspec.speculative.medusa import MedusaDrafter
from trtspec.speculative.ngram import NGramDrafter
from trtspec.speculative.suffix import SuffixDrafter


@dataclass(frozen=True)
class DraftEngine:
    """What a method with an engine of its own drafts with; which kind, its network decides."""

    engine: ModelEngine | HeadsEngine
    resources: ResourceManager


@dataclass(frozen=True)
class Method:
    """needs: what the drafter will ask for, known from the config before any engine is loaded.
    make: the drafter, from the config and, for methods that need one, the draft engine."""

    needs: Callable[[Any], DrafterNeeds]
    make: Callable[[Any, DraftEngine | None], Drafter]


def _rollout_method(
    needs: Callable[[Any], DrafterNeeds], make: Callable[[Any, Any, ResourceManager], Drafter]
) -> Method:
    """A method whose drafts come from an engine of its own; ``make``: from that, the config and the
    caches."""

    def checked(config: Any, draft: DraftEngine | None) -> Drafter:
        if draft is None:
            raise ConfigError(
                f"speculative method {config.method} needs a draft engine, but the engine folder "
                f"was built without one; rebuild it with the draft {config.speculative_model}"
            )
        return make(config, draft.engine, draft.resources)

    return Method(needs, checked)


_EAGLE = _rollout_method(
    EagleDrafter.needs_of,
    lambda config, engine, resources: EagleDrafter(engine, resources, config),
)

METHODS: Mapping[type[DecodingConfig], Method] = {
    NGramDecodingConfig: Method(NGramDrafter.needs_of, lambda config, draft: NGramDrafter(config)),
    SuffixDecodingConfig: Method(
        SuffixDrafter.needs_of, lambda config, draft: SuffixDrafter(config)
    ),
    DraftTargetDecodingConfig: _rollout_method(
        DraftModelDrafter.needs_of,
        lambda config, engine, resources: DraftModelDrafter(engine, resources, config),
    ),
    EagleDecodingConfig: _EAGLE,
    Eagle3DecodingConfig: _EAGLE,
    MtpDecodingConfig: _EAGLE,
    MedusaDecodingConfig: _rollout_method(
        MedusaDrafter.needs_of, lambda config, engine, resources: MedusaDrafter(engine, config)
    ),
    ExtractHiddenStatesConfig: Method(
        ExtractHiddenStatesDrafter.needs_of,
        lambda config, draft: ExtractHiddenStatesDrafter(config),
    ),
}


def drafter_needs(config: DecodingConfig) -> DrafterNeeds:
    """What the drafter for `config` may use in a step; ConfigError for an unregistered class."""
    return _method(config).needs(config)


def make_drafter(
    config: DecodingConfig, engine: ModelEngine | HeadsEngine | None, resources: ResourceManager
) -> Drafter:
    """The drafter for `config`. `engine`: the draft engine, None for methods without one;
    ConfigError if a method lacks what it needs."""
    draft = None if engine is None else DraftEngine(engine, resources)
    return _method(config).make(config, draft)


def _method(config: DecodingConfig) -> Method:
    method = METHODS.get(type(config))
    if method is None:
        names = ", ".join(cls.__name__ for cls in METHODS)
        raise ConfigError(f"there is no drafter for {type(config).__name__}; registered: {names}")
    return method
