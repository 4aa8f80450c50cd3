"""Which drafts of an engine folder a speculative config refers to, and whether they can serve
it."""

from __future__ import annotations

from trtspec.builder.pair import OWN_DRAFT, check_engine_draft
from trtspec.builder.target_drafts import TargetDrafts
from trtspec.config.decoding import DecodingConfig
from trtspec.config.tree import Choices
from trtspec.config.tree_decoding import TreeDecodingConfig, with_networks
from trtspec.engine.engine_draft import EngineDraft, SpeculationContract
from trtspec.engine.folder import EngineConfig
from trtspec.errors import ConfigError
from trtspec.speculative.members import naming
from trtspec.speculative.registry import methods


def built_speculation(engine: EngineConfig) -> DecodingConfig | None:
    """The speculation that an engine folder was built for."""
    if engine.speculation is not None or not engine.drafts:
        return engine.speculation
    contract = engine.drafts[0].speculation
    method = methods()[contract.method].options
    assert issubclass(method, TreeDecodingConfig), "only these are built into an engine"
    limits = contract.p_min, contract.window, contract.max_model_len
    return method.of_tree(OWN_DRAFT, contract.tree, *limits)


def find_drafts(
    engine: EngineConfig, speculation: DecodingConfig | None, at_hand: TargetDrafts
) -> tuple[EngineDraft, ...]:
    """The drafts that a config runs: one for each member with a network of its own, in order.

    Raises:
        ConfigError: the engine lacks one of them, or was built for less than the config asks for.
        CheckpointError: a named checkpoint cannot be found or read.
    """
    chosen: list[EngineDraft] = []
    for member in with_networks(speculation):
        unused = [draft for draft in engine.drafts if draft not in chosen]
        assert speculation is not None, "it has members"
        with naming(speculation, member):
            chosen.append(_find_draft(engine, unused, member, at_hand))
    return tuple(chosen)


def _find_draft(
    engine: EngineConfig,
    unused: list[EngineDraft],
    asked: TreeDecodingConfig,
    at_hand: TargetDrafts,
) -> EngineDraft:
    """The named draft, else the first one that fits among those for the method."""
    if not engine.drafts:
        raise ConfigError(
            "the engine was built without a draft; rebuild it with "
            f"--speculative_decoding_mode {asked.method} --draft_checkpoint_dir ..."
        )
    fitting = [draft for draft in unused if draft.speculation.method == asked.method]
    if not fitting:
        built = [draft.speculation.method for draft in engine.drafts]
        if asked.method in built:
            raise ConfigError(
                f"the engine has {built.count(asked.method)} draft(s) for method "
                f"{asked.method!r}, which other drafters use; leave this one out or rebuild the "
                "engine with a draft for each"
            )
        those = "draft was" if len(built) == 1 else "drafts were"
        raise ConfigError(
            f"method {asked.method!r} was asked for, the engine's {those} built for "
            f"{', '.join(map(repr, built))}; leave speculative_config out or rebuild the engine"
        )
    named = [draft for draft in fitting if draft.folder == asked.speculative_model]
    problems: list[ConfigError] = []
    for draft in named or fitting:
        try:
            _check_contract(draft.speculation, asked)
            check_engine_draft(engine, draft, asked, at_hand)
        except ConfigError as error:
            problems.append(error)
        else:
            return draft
    raise problems[0]


def _check_contract(built: SpeculationContract, asked: TreeDecodingConfig) -> None:
    """Check that the requested tree is a cut of the tree that the engine rolls out."""
    if asked.tree.choices != built.choices:
        raise ConfigError(
            f"the tree asked for ({_tree_kind(asked.tree.choices)}) is not the engine's "
            f"({_tree_kind(built.choices)}); a static tree is fixed at build"
        )
    if asked.topk != built.topk:
        raise ConfigError(
            f"topk={asked.topk} was asked for, the engine's rollout has {built.topk}; it is fixed "
            "at build"
        )
    for name in ("num_steps", "num_draft_tokens"):
        if getattr(asked, name) > getattr(built, name):
            raise ConfigError(
                f"{name}={getattr(asked, name)} was asked for, the engine was built for at most "
                f"{getattr(built, name)}; lower it or rebuild the engine"
            )


def _tree_kind(choices: Choices | None) -> str:
    return "dynamic" if choices is None else f"choices {list(map(list, choices))}"
