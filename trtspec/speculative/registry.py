"""Which drafter a speculative config stands for: one entry per method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trtspec.config.decoding import DecodingConfig, NGramDecodingConfig
from trtspec.config.dflash_decoding import DDTreeDecodingConfig, DFlashDecodingConfig
from trtspec.config.extract_hidden_states import ExtractHiddenStatesConfig
from trtspec.config.medusa_decoding import MedusaDecodingConfig
from trtspec.config.mtp_decoding import MtpDecodingConfig
from trtspec.config.parallel_decoding import PardDecodingConfig, PEagleDecodingConfig
from trtspec.config.suffix_decoding import SuffixDecodingConfig
from trtspec.config.tree_decoding import (
    DraftTargetDecodingConfig,
    Eagle3DecodingConfig,
    EagleDecodingConfig,
)
from trtspec.errors import ConfigError
from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.drafter import Drafter, DrafterNeeds
from trtspec.executor.heads_engine import HeadsEngine
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.resources import DraftCache
from trtspec.speculative.dflash import DFlashDrafter
from trtspec.speculative.draft_model import DraftModelDrafter
from trtspec.speculative.eagle import EagleDrafter
from trtspec.speculative.extract_hidden_states import ExtractHiddenStatesDrafter
from trtspec.speculative.medusa import MedusaDrafter
from trtspec.speculative.member import Member
from trtspec.speculative.ngram import NGramDrafter
from trtspec.speculative.reads_part import ReadsPart
from trtspec.speculative.suffix import SuffixDrafter
from trtspec.speculative.union import UnionDrafter, union_needs


@dataclass(frozen=True)
class DraftEngine:
    """What a method with an engine of its own drafts with; which kind, its network decides.
    cache: what the engine keeps its K/V in, if it does. states: where the target's states that it
    reads lie in a row of all that are captured; None: it reads all, or none."""

    engine: ModelEngine | HeadsEngine
    cache: DraftCache | None = None
    states: slice | None = None


@dataclass(frozen=True)
class Steps:
    """What steps may become: the target, most requests and most rows of one."""

    target: CountedEngine
    max_requests: int
    max_rows: int


@dataclass(frozen=True)
class Method:
    """needs: what the drafter will ask for, known from the config before any engine is loaded.
    make: the drafter, from the config and exactly the draft engines that it needs."""

    needs: Callable[[Any], DrafterNeeds]
    make: Callable[[Any, Sequence[DraftEngine]], Drafter]


def _rollout_method(
    needs: Callable[[Any], DrafterNeeds], make: Callable[[Any, Any, Any], Drafter]
) -> Method:
    """A method whose drafts come from an engine of its own; ``make``: from the config, that and its
    cache."""

    def checked(config: Any, drafts: Sequence[DraftEngine]) -> Drafter:
        if not drafts:
            raise ConfigError(
                f"speculative method {config.method} needs a draft engine, but the engine folder "
                f"was built without one; rebuild it with the draft {config.speculative_model}"
            )
        (draft,) = drafts
        drafter = make(config, draft.engine, draft.cache)
        return drafter if draft.states is None else ReadsPart(drafter, draft.states)

    return Method(needs, checked)


_DRAFT_MODEL = _rollout_method(
    DraftModelDrafter.needs_of,
    lambda config, engine, cache: DraftModelDrafter(engine, cache, config),
)
_EAGLE = _rollout_method(
    EagleDrafter.needs_of,
    lambda config, engine, cache: EagleDrafter(engine, cache, config),
)
_DFLASH = _rollout_method(
    DFlashDrafter.needs_of,
    lambda config, engine, cache: DFlashDrafter(engine, cache, config),
)


METHODS: Mapping[type[DecodingConfig], Method] = {
    NGramDecodingConfig: Method(NGramDrafter.needs_of, lambda config, drafts: NGramDrafter(config)),
    SuffixDecodingConfig: Method(
        SuffixDrafter.needs_of, lambda config, drafts: SuffixDrafter(config)
    ),
    DraftTargetDecodingConfig: _DRAFT_MODEL,
    EagleDecodingConfig: _EAGLE,
    Eagle3DecodingConfig: _EAGLE,
    MtpDecodingConfig: _EAGLE,
    # The mask rows of a parallel draft are the engine's own affair, as the beam of another is.
    PardDecodingConfig: _DRAFT_MODEL,
    PEagleDecodingConfig: _EAGLE,
    MedusaDecodingConfig: _rollout_method(
        MedusaDrafter.needs_of, lambda config, engine, cache: MedusaDrafter(engine, config)
    ),
    DFlashDecodingConfig: _DFLASH,
    DDTreeDecodingConfig: _DFLASH,
    ExtractHiddenStatesConfig: Method(
        ExtractHiddenStatesDrafter.needs_of,
        lambda config, drafts: ExtractHiddenStatesDrafter(config),
    ),
}


def drafter_needs(config: DecodingConfig) -> DrafterNeeds:
    """What the drafter for `config` may use in a step; ConfigError for an unregistered class."""
    needs = [_method(member).needs(member) for member in config.members]
    return needs[0] if len(needs) == 1 else union_needs(needs, config.num_rows - 1)


def make_drafter(
    config: DecodingConfig, drafts: Sequence[DraftEngine] = (), steps: Steps | None = None
) -> Drafter:
    """The drafter for `config`. `drafts`: its engines, none for methods without; ConfigError if a
    method lacks what it needs. `steps`: by which a drafter that weighs costs measures them."""
    rest = iter(drafts)
    members = [_make_member(member, rest) for member in config.members]
    if len(members) == 1 and not config.adaptive:
        return members[0].drafter
    union = UnionDrafter(
        members,
        drafter_needs(config),
        adapts=config.adaptive,
        has_own_rule=config.simulate_acceptance is not None or bool(config.typical_acceptance),
    )
    if steps is not None:
        union.profile(steps.target, steps.max_requests, steps.max_rows)
    return union


def _make_member(config: DecodingConfig, drafts: Iterator[DraftEngine]) -> Member:
    """A method, with the next of the engines if it needs one."""
    method = _method(config)
    own = list(islice(drafts, 1)) if method.needs(config).has_draft_engine else []
    drafter = method.make(config, own)
    if not own:
        return Member(config.method, drafter)
    return Member(config.method, drafter, own[0].engine, own[0].cache)


def _method(config: DecodingConfig) -> Method:
    method = METHODS.get(type(config))
    if method is None:
        names = ", ".join(cls.__name__ for cls in METHODS)
        raise ConfigError(f"there is no drafter for {type(config).__name__}; registered: {names}")
    return method
