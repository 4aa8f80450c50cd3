"""The speculative methods by name, including those of other packages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from trtspec.config.decoding import DecodingConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.speculative_keys import METHODS_ELSEWHERE
from trtspec.config.strict import key_rules, nearest
from trtspec.errors import ConfigError
from trtspec.executor.step.drafter import Drafter, DrafterNeeds
from trtspec.speculative.alarm import AlarmedDrafter
from trtspec.speculative.assistant.method import ASSISTANT
from trtspec.speculative.base import DraftMethod, Steps
from trtspec.speculative.block.method import BLOCK_METHODS
from trtspec.speculative.draft_kind import DraftKind
from trtspec.speculative.draft_model.method import DRAFT_MODEL
from trtspec.speculative.draft_runtime import DraftRuntime
from trtspec.speculative.eagle.method import EAGLE, EAGLE3
from trtspec.speculative.hidden_states.method import EXTRACT_HIDDEN_STATES
from trtspec.speculative.hybrid.member import Member
from trtspec.speculative.hybrid.method import AUTO, HYBRID
from trtspec.speculative.hybrid.union import UnionDrafter
from trtspec.speculative.medusa.method import MEDUSA
from trtspec.speculative.mtp.method import MTP
from trtspec.speculative.ngram.method import NGRAM
from trtspec.speculative.parallel.method import P_EAGLE, PARD, PARD2
from trtspec.speculative.reads_part import ReadsPart
from trtspec.speculative.self_draft.method import SELF
from trtspec.speculative.suffix.method import SUFFIX

ENTRY_POINTS = "trtspec.methods"
"""Group of the entry points by which other packages add a `DraftMethod`."""
NO_METHOD = "none"
"""The user's word for no speculation."""

_BUILT_IN = (
    *(NGRAM, SUFFIX, DRAFT_MODEL, EAGLE, EAGLE3, MEDUSA, MTP, PARD, PARD2, P_EAGLE),
    *BLOCK_METHODS,
    *(ASSISTANT, SELF, EXTRACT_HIDDEN_STATES, HYBRID, AUTO),
)
DEFAULT = DRAFT_MODEL.name
"""The method of a config with only a draft checkpoint, as in vLLM."""
AUTOMATIC = AUTO.name
"""The method that chooses by itself, for programs whose user named none."""


@cache
def methods() -> Mapping[str, DraftMethod]:
    """All methods by name.

    Raises:
        ConfigError: another package's method has a name or spelling that is taken.
    """
    found = {method.name: method for method in _BUILT_IN}
    taken = {_folded(NO_METHOD), *(word for method in _BUILT_IN for word in _spellings(method))}
    for entry in entry_points(group=ENTRY_POINTS):
        method: DraftMethod = entry.load()
        for word in _spellings(method):
            if word in taken:
                raise ConfigError(
                    f"the entry point {entry.value} adds a speculative method {method.name!r} that "
                    f"is spelled {word!r}, which is taken; rename it or uninstall its package"
                )
        taken.update(_spellings(method))
        found[method.name] = method
    return found


def other_modules(names: Collection[str]) -> list[str]:
    """The modules in which other packages define methods with one of these names, or with weights
    in a target's checkpoint: what is read from a checkpoint depends on these modules."""
    brought = [(entry.module, entry.load()) for entry in entry_points(group=ENTRY_POINTS)]
    return sorted(
        module for module, method in brought if method.name in names or method.in_target is not None
    )


def method_of(config: DecodingConfig) -> DraftMethod:
    """The method of a config; ConfigError for an unknown class."""
    method = methods().get(getattr(config, "method", ""))
    if method is None or method.options is not type(config):
        names = ", ".join(each.options.__name__ for each in methods().values() if each.make)
        raise ConfigError(f"there is no drafter for {type(config).__name__}; registered: {names}")
    return method


@cache
def draft_kinds() -> Mapping[str, DraftKind]:
    """The kinds of draft networks, by their names in engine folders."""
    return {kind.config.kind: kind for method in methods().values() for kind in method.kinds}


def draft_to_dict(config: DraftConfig) -> dict[str, Any]:
    """Plain JSON values, including the kind; `draft_from_dict` is the inverse."""
    return {"kind": config.kind, **config.to_dict()}


def draft_from_dict(data: Mapping[str, Any]) -> DraftConfig:
    """The inverse of `draft_to_dict`; KeyError without a kind, ConfigError for an unknown one, and
    for fields that do not fit it."""
    values = dict(data)
    name = values.pop("kind")
    kind = draft_kinds().get(name)
    if kind is None:
        raise ConfigError(
            f"no speculative method that is installed has a draft network of kind {name!r} (known: "
            f"{', '.join(draft_kinds())}); install the package that brings it, or rebuild without"
        )
    config: DraftConfig = kind.config.from_dict(values)
    return config


def method_names() -> tuple[str, ...]:
    """Everything that a config may name as its method, including no speculation."""
    return *methods(), NO_METHOD


def method_name(name: object) -> str:
    """The method for a user's spelling ("NGRAM", "Draft_Target", ...); ConfigError lists the
    available ones for any other."""
    plain = _folded(str(name))
    known = {word: method.name for method in methods().values() for word in _spellings(method)}
    if plain in known:
        return known[plain]
    available = ", ".join(method_names())
    if plain in METHODS_ELSEWHERE:
        raise ConfigError(
            f"speculative method {name!r} is not available in this version of trtspec; "
            f"available: {available}"
        )
    for method in methods().values():
        if method.ending is not None and plain.endswith(method.ending):
            return method.name
    near = nearest(plain, [*methods(), *known, NO_METHOD])
    raise ConfigError(f"unknown speculative method {name!r}{near} (available: {available})")


def trainable_methods() -> tuple[str, ...]:
    """Names of the methods that have a recipe."""
    return tuple(name for name, method in methods().items() if method.recipe is not None)


def methods_taking(option: str) -> list[str]:
    """The methods whose configs have that option, under any of its names."""
    return [
        name
        for name, method in methods().items()
        if option in key_rules(method.options).aliases
        or any(field.name == option for field in fields(method.options))
    ]


def drafter_needs(config: DecodingConfig) -> DrafterNeeds:
    """What the drafter for `config` may use in a step; ConfigError for an unregistered class."""
    needs = [_needs(member) for member in config.members]
    return needs[0] if len(needs) == 1 else DrafterNeeds.of_all(needs, config.num_rows - 1)


def make_drafter(
    config: DecodingConfig, drafts: Sequence[DraftRuntime] = (), steps: Steps | None = None
) -> Drafter:
    """The drafter for `config`. `drafts`: its engines, none for methods without; ConfigError if a
    method lacks what it needs. `steps`: for drafters that measure costs."""
    drafter = _make_drafter(config, drafts)
    if steps is not None:
        drafter.profile(steps.target, steps.max_requests, steps.max_rows)
    return drafter


def _make_drafter(config: DecodingConfig, drafts: Sequence[DraftRuntime]) -> Drafter:
    rest = iter(drafts)
    is_judged = config.simulate_acceptance is None
    members = [_make_member(member, rest, is_judged) for member in config.members]
    if len(members) == 1 and not config.adaptive:
        return members[0].drafter
    return UnionDrafter(
        members,
        drafter_needs(config),
        adapts=config.adaptive,
        has_own_rule=config.simulate_acceptance is not None or bool(config.typical_acceptance),
    )


def _make_member(config: DecodingConfig, drafts: Iterator[DraftRuntime], is_judged: bool) -> Member:
    """A method's drafter, with the next of the engines if it needs one. ``is_judged``: acceptance
    is informative about its drafts."""
    method, has_engine = method_of(config), _needs(config).has_draft_engine
    draft = next(drafts, None) if has_engine else None
    if has_engine and draft is None:
        named = getattr(config, "speculative_model", None)
        raise ConfigError(
            f"speculative method {config.method} needs a draft engine, but the engine folder "
            f"was built without one; rebuild it with the draft {named}"
        )
    assert method.make is not None, "those without needs were refused"
    drafter = method.make(config, draft)
    if draft is None:
        return Member(drafter)
    if draft.states is not None:
        drafter = ReadsPart(drafter, draft.states)
    if is_judged:
        drafter = AlarmedDrafter(drafter, f"{config.method} ({draft.folder})", draft.engine)
    return Member(drafter, draft.engine, draft.cache)


def _needs(config: DecodingConfig) -> DrafterNeeds:
    needs = method_of(config).needs
    if needs is None:
        raise ConfigError(f"the method {config.method} drafts by others alone")
    return needs(config)


def _spellings(method: DraftMethod) -> tuple[str, ...]:
    return _folded(method.name), *method.spellings


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
