"""HybridDecodingConfig: several methods draft, and the union of their trees is verified at once.
AutoDecodingConfig: speculation without choosing a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from trtspec.config.decoding import DecodingConfig, DraftsAtHand
from trtspec.config.speculative_keys import COMMON_ALIASES, COMMON_FOREIGN, LOSSY, MODEL_ALIASES
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree import MAX_TREE_ROWS
from trtspec.config.tree_decoding import LEFT_OUT, TreeDecodingConfig, agree, rows_of
from trtspec.errors import ConfigError
from trtspec.speculative.base import Parser
from trtspec.speculative.members import member_label, naming
from trtspec.speculative.suffix import SuffixDecodingConfig

_OF_ONE = Foreign(
    "it belongs to one method; write it in that one's config, alone or among `drafters`", (None,)
)
_KEYS_OF_ONE = (
    *("topk", "eagle_topk", "speculative_eagle_topk", "num_steps", "speculative_num_steps"),
    *("prompt_lookup_min", "prompt_lookup_max", "max_matching_ngram_size"),
)
_FOREIGN: Mapping[str, Foreign] = {
    **COMMON_FOREIGN,
    **dict.fromkeys(_KEYS_OF_ONE, _OF_ONE),
    "lossy_typical_acceptance": Foreign(LOSSY, (None,)),
}
_MODEL = ("model", "speculative_model", "speculative_model_dir", "draft_model")
_OF_TREES = (
    *("num_draft_tokens", "speculative_num_draft_tokens", "max_total_draft_tokens"),
    *("use_dynamic_tree", "drafters"),
)
_OF_ALL = " holds for the drafts of all; write it beside `drafters`"


@strict_config(
    aliases={**COMMON_ALIASES, "speculative_num_draft_tokens": "num_draft_tokens"},
    foreign={**_FOREIGN, **dict.fromkeys(_MODEL, _OF_ONE)},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class HybridDecodingConfig(DecodingConfig):
    """Every drafter proposes a tree of its own; their union, merged by token path, is verified.

    drafters: the configs of two or more methods, each with its own options. If there is only room
    for some of the nodes, it goes to those most likely to be accepted, judging by the earlier
    drafts of each. With adaptive=True, a drafter with a network only drafts in steps where its
    expected contribution is worth its time. num_draft_tokens: N, rows of the union that are
    verified, the root included (also `speculative_num_draft_tokens`); by default those of the
    largest drafter. max_total_draft_tokens: the same without the root, N - 1. max_draft_len:
    follows from the drafters; the depth of the deepest.
    """

    method: ClassVar[str] = "hybrid"
    stands_alone: ClassVar[str | None] = "its drafters can stand here themselves"

    drafters: tuple[DecodingConfig, ...]
    max_draft_len: int = LEFT_OUT
    num_draft_tokens: int = LEFT_OUT
    max_total_draft_tokens: int = LEFT_OUT

    def __post_init__(self) -> None:
        self._check_drafters()
        deepest = max(member.max_draft_len for member in self.drafters)
        agree(self, "max_draft_len", deepest, "the drafters mean")
        self._set("max_draft_len", deepest)
        limits = [m.max_model_len for m in (self, *self.drafters) if m.max_model_len is not None]
        self._set("max_model_len", min(limits, default=None))
        rows = rows_of(self, max(member.num_rows for member in self.drafters))
        self._set("num_draft_tokens", rows)
        self._set("max_total_draft_tokens", rows - 1)
        self._check_common()
        most = min(1 + sum(member.num_rows - 1 for member in self.drafters), MAX_TREE_ROWS)
        if not 2 <= rows <= most:
            raise ConfigError(
                f"num_draft_tokens={rows} counts the root and the draft tokens that are verified "
                f"of all drafters; with these it must be between 2 and {most}"
            )

    @property
    def members(self) -> tuple[DecodingConfig, ...]:
        return self.drafters

    @property
    def num_rows(self) -> int:
        return self.num_draft_tokens

    def resolve(self, drafts: DraftsAtHand) -> Self:
        drafters = []
        for member in self.drafters:
            with naming(self, member):
                drafters.append(member.resolve(drafts))
        return self if tuple(drafters) == self.drafters else replace(self, drafters=tuple(drafters))

    def _check_drafters(self) -> None:
        if len(self.drafters) < 2:
            raise ConfigError(
                f"drafters has {len(self.drafters)} entries; a hybrid is made of two or more "
                "methods, write a single one by itself"
            )
        for i, member in enumerate(self.drafters):
            if type(member) is DecodingConfig:
                raise ConfigError(f"drafters[{i}] names no method; give a config of one")
            first = self.drafters.index(member)
            for refused, why in (
                (member.stands_alone, f": it cannot be part of a hybrid: {member.stands_alone}"),
                (member.typical_acceptance, f": lossy_typical_acceptance is refused: {LOSSY}"),
                (member.simulate_acceptance, ": simulate_acceptance" + _OF_ALL),
                (member.adaptive, ": adaptive=True" + _OF_ALL),
                (first < i, f" is the same as {member_label(first, member.method)}; leave one out"),
            ):
                if refused:
                    raise ConfigError(member_label(i, member.method) + why)


@strict_config(
    aliases={**COMMON_ALIASES, **MODEL_ALIASES},
    foreign={**_FOREIGN, **dict.fromkeys(_OF_TREES, _OF_ONE)},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class AutoDecodingConfig(DecodingConfig):
    """Speculation without choices: suffix decoding and the draft, if there is one, as a hybrid with
    `adaptive=True`, so that whatever does not pay is left out in each step.

    speculative_model: directory or id of a draft checkpoint of any kind, as determined by its files
    (also `model`, `draft_model`). By default none, or those in the engine folder. max_draft_len: D,
    steps of that draft (also `num_speculative_tokens`); by default at most 12 for a draft model on
    a CPU, whose drafts end where they do not pay, otherwise 5, or what its kind says.
    """

    method: ClassVar[str] = "auto"
    stands_alone: ClassVar[str | None] = "it chooses the methods itself"

    speculative_model: str | Path | None = None
    max_draft_len: int = LEFT_OUT
    adaptive: bool = True

    def __post_init__(self) -> None:
        if not self.adaptive:
            raise ConfigError(
                "adaptive=False: the method auto is adaptive; name a method to have it fixed"
            )
        if self.max_draft_len != LEFT_OUT:
            if self.speculative_model is None:
                raise ConfigError(
                    f"max_draft_len={self.max_draft_len} is that of a draft, but no "
                    "speculative_model is given; leave it out"
                )
            self._check_common()

    def resolve(self, drafts: DraftsAtHand) -> DecodingConfig:
        """By the files of the draft, or with the drafts in an engine folder."""
        drafters: tuple[DecodingConfig, ...] = () if drafts.built is None else drafts.built.members
        if self.speculative_model is not None:
            draft = drafts.method_for(self.speculative_model)
            usual = (draft.steps_by_pass if drafts.by_pass else None) or draft.usual_steps
            steps = usual if self.max_draft_len == LEFT_OUT else self.max_draft_len
            length = {} if steps is None else {"max_draft_len": steps}
            drafters = (draft(speculative_model=self.speculative_model, **length),)
        of_all = ("max_model_len", "simulate_acceptance", "adaptive")
        common = {name: getattr(self, name) for name in of_all}
        networks = tuple(d for d in drafters if isinstance(d, TreeDecodingConfig))
        if not networks:
            return SuffixDecodingConfig(**common)
        return HybridDecodingConfig(drafters=(SuffixDecodingConfig(), *networks), **common)


def parse_drafters(options: Mapping[str, Any], parse: Parser) -> Mapping[str, Any]:
    """The options with the drafters' configs; errors name the drafter that they concern."""
    drafters = options.get("drafters")
    if not isinstance(drafters, (list, tuple)):
        raise ConfigError(
            'the method hybrid needs `drafters`, a list of configs such as [{"method": '
            f'"suffix"}}, {{"method": "eagle3", "model": ...}}], got {drafters!r:.80}'
        )
    members = []
    for i, drafter in enumerate(drafters):
        try:
            members.append(parse(drafter))
        except ConfigError as error:
            method = drafter.get("method") if isinstance(drafter, Mapping) else None
            raise ConfigError(f"{member_label(i, method)}: {error}") from error
    if None in members:
        raise ConfigError(f"drafters[{members.index(None)}] is None; give a method's config")
    return {**options, "drafters": members}


def over_drafts(config: HybridDecodingConfig, folders: Sequence[str]) -> HybridDecodingConfig:
    """See `DraftMethod.over_drafts`."""
    rest = iter(folders)
    drafters = [
        each.of_engine(next(rest)) if isinstance(each, TreeDecodingConfig) else each
        for each in config.drafters
    ]
    return replace(config, drafters=tuple(drafters))
