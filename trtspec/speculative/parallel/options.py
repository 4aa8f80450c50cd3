"""Options of methods whose draft guesses all tokens in one pass: PARD, PARD-2 and P-EAGLE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.cut_decoding import VOCABULARY_ALIASES, CutVocabularyConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
    TREE_ALIASES,
)
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree import Choices
from trtspec.config.tree_decoding import ChoicesDecodingConfig
from trtspec.errors import ConfigError
from trtspec.speculative.eagle import EAGLE_ALIASES, EAGLE_FOREIGN, EagleFamilyConfig
from trtspec.speculative.parallel.shape import Pard2Config, PardConfig, PEagleConfig

_FOREIGN: Mapping[str, Foreign] = {
    "parallel_drafting": Foreign("the method says so; leave it out", (None, True)),
}


@dataclass(frozen=True, kw_only=True)
class ParallelDecodingConfig(ChoicesDecodingConfig):
    """A draft checkpoint with a mask token; one pass guesses the tokens of all D depths.

    The tree is a chain of the best guesses (topk=1), static (the choices: ranks among a depth's
    guesses), or the best of all paths through every depth's k best. mask_token_id: stated by the
    checkpoint's config.json; if it is given here too, it must agree.
    """

    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.mask_token_id is not None and self.mask_token_id < 0:
            raise ConfigError(f"mask_token_id={self.mask_token_id} must not be negative")
        super().__post_init__()

    def check_network(self, built: DraftConfig) -> None:
        assert isinstance(built, PardConfig | Pard2Config | PEagleConfig), "these methods run these"
        if self.mask_token_id not in (None, built.mask_token):
            raise ConfigError(
                f"mask_token_id={self.mask_token_id} was asked for, the draft was trained with "
                f"{built.mask_token}; leave it out"
            )


_pard_config = strict_config(
    aliases={
        **COMMON_ALIASES,
        **TREE_ALIASES,
        **MODEL_ALIASES,
        **VOCABULARY_ALIASES,
        "eagle_choices": "choices",
    },
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN, **_FOREIGN},
    none_means_default=True,
)


@_pard_config
@dataclass(frozen=True, kw_only=True)
class PardDecodingConfig(ParallelDecodingConfig, CutVocabularyConfig):
    """PARD: a language model of the target's vocabulary; options: see `ParallelDecodingConfig`,
    `TreeDecodingConfig` and `CutVocabularyConfig`. choices: the paths of a static tree (also
    `eagle_choices`)."""

    method: ClassVar[str] = "pard"
    choices_key: ClassVar[str] = "choices"

    choices: Choices | str | None = None


@_pard_config
@dataclass(frozen=True, kw_only=True)
class Pard2DecodingConfig(PardDecodingConfig):
    """PARD-2: a PARD model that also reads the target's hidden states; options: see
    `PardDecodingConfig`."""

    method: ClassVar[str] = "pard2"


@strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES, **EAGLE_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN, **EAGLE_FOREIGN, **_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class PEagleDecodingConfig(ParallelDecodingConfig, EagleFamilyConfig):
    """P-EAGLE: an EAGLE-3 network with mask rows; options: see `ParallelDecodingConfig` and
    `EagleFamilyConfig`."""

    method: ClassVar[str] = "p_eagle"
