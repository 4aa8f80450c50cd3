"""The options of EAGLE, and those shared with similar networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from trtspec.config.cut_decoding import VOCABULARY_ALIASES, CutVocabularyConfig
from trtspec.config.decoding import DecodingConfig, DraftsAtHand
from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
    TREE_ALIASES,
    any_bool,
)
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree import Choices
from trtspec.config.tree_decoding import ChoicesDecodingConfig

EAGLE_ALIASES: Mapping[str, str] = VOCABULARY_ALIASES
EAGLE_FOREIGN: Mapping[str, Foreign] = {
    "num_eagle_layers": Foreign(
        "the draft's config.json says how many layers it has; the depth of the tree is "
        "max_draft_len",
        (None,),
    ),
    "max_non_leaves_per_layer": Foreign(
        "topk bounds the nodes that are expanded in a step; give topk and num_draft_tokens, or "
        "eagle_choices",
        (None,),
    ),
    # One engine folder holds both networks, either way.
    "eagle3_one_model": Foreign("it must be true or false", any_bool),
    "eagle3_layers_to_capture": Foreign(
        "the draft's config.json says which of the target's layers it reads", (None,)
    ),
    "eagle3_model_arch": Foreign(
        "the draft's config.json says what network it is", (None, "llama3")
    ),
    **dict.fromkeys(
        ("disable_eagle_block_drop", "disable_lookahead_block_hashes"),
        Foreign("a cached block of these drafts is found by its tokens and the next one"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class EagleFamilyConfig(ChoicesDecodingConfig, CutVocabularyConfig):
    """A small network that reads the target's hidden states drafts; in addition to
    `TreeDecodingConfig` and `CutVocabularyConfig`:

    eagle_choices: a static tree instead of (k, D, N), as EAGLE-1 and Medusa write it: one path per
    node, the rank of each step among its siblings, such as ((0,), (1,), (0, 0)); also as JSON text.
    k, D and N follow from it and must agree if they are given too.
    """

    choices_key: ClassVar[str] = "eagle_choices"

    eagle_choices: Choices | str | None = None


_eagle_config = strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES, **EAGLE_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN, **EAGLE_FOREIGN},
    none_means_default=True,
)


@_eagle_config
@dataclass(frozen=True, kw_only=True)
class Eagle3DecodingConfig(EagleFamilyConfig):
    """EAGLE-3: the draft reads several of the target's layers. Options: see `EagleFamilyConfig`."""

    method: ClassVar[str] = "eagle3"


@_eagle_config
@dataclass(frozen=True, kw_only=True)
class EagleDecodingConfig(EagleFamilyConfig):
    """EAGLE-1 and EAGLE-2, which share checkpoints and differ only in the tree: static
    (``eagle_choices``) or dynamic. Options: see `EagleFamilyConfig`.

    eagle3_one_model: TensorRT-LLM's, where "Eagle" also means EAGLE-3. If it is given, with either
    value, the draft's files decide between the two.
    """

    method: ClassVar[str] = "eagle"

    eagle3_one_model: bool | None = None

    def resolve(self, drafts: DraftsAtHand) -> DecodingConfig:
        if self.eagle3_one_model is None:
            return self
        if drafts.built is not None:  # an engine folder says it for its drafts
            found = {type(member) for member in drafts.built.members}
        else:
            found = {drafts.method_for(self.speculative_model)}
        if Eagle3DecodingConfig not in found:
            return self
        shared = {each.name: getattr(self, each.name) for each in fields(Eagle3DecodingConfig)}
        return Eagle3DecodingConfig(**shared)
