"""MtpDecodingConfig: the target's own multi-token prediction modules draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.config.draft import DraftConfig
from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
    TREE_ALIASES,
    any_bool,
    any_number,
)
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree import TreeShape
from trtspec.config.tree_decoding import LEFT_OUT, OWN_MODULES
from trtspec.errors import ConfigError
from trtspec.speculative.eagle import EAGLE_ALIASES, EAGLE_FOREIGN, EagleFamilyConfig
from trtspec.speculative.mtp.modules_shape import MtpModulesConfig

_ALIASES: Mapping[str, str] = {"enable_multi_layer_eagle": "use_mtp_vanilla"}
_FOREIGN: Mapping[str, Foreign] = {
    # One engine folder holds target and module, either way.
    "mtp_eagle_one_model": Foreign("it must be true or false", any_bool),
    "index_share_for_mtp_iteration": Foreign("attention here has no indexer to share"),
    # They bound where TensorRT-LLM relaxes acceptance, which is never done here.
    **dict.fromkeys(
        ("begin_thinking_phase_token", "end_thinking_phase_token"),
        Foreign("it must be a token id", any_number),
    ),
    **{
        name: EAGLE_FOREIGN[name]
        for name in ("disable_eagle_block_drop", "disable_lookahead_block_hashes")
    },
}


@strict_config(
    aliases={
        **COMMON_ALIASES,
        **TREE_ALIASES,
        **MODEL_ALIASES,
        **EAGLE_ALIASES,
        **_ALIASES,
    },
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN, **_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class MtpDecodingConfig(EagleFamilyConfig):
    """Multi-token prediction: modules that were trained with the target draft. Either module i
    drafts at depth i, a chain (*vanilla*), or the first one at every depth, fed its own output
    (*MTP-Eagle*), with trees as in EAGLE. The other options are EAGLE's, see `EagleFamilyConfig`.

    speculative_model: the checkpoint with the modules; by default the target's own.
    num_nextn_predict_layers: TensorRT-LLM's; stands for ``max_draft_len`` if neither that nor
    eagle_choices are given. In combination with them it is a number of modules, and by vLLM's rule
    the depth is at most that or a multiple of it. use_mtp_vanilla: a module for each depth, as
    TensorRT-LLM calls it (SGLang: ``enable_multi_layer_eagle``). By default this is used if the
    checkpoint has several modules, as in TensorRT-LLM, if they suffice and the draft is a chain.
    """

    method: ClassVar[str] = "mtp"

    speculative_model: str | Path = OWN_MODULES
    num_nextn_predict_layers: int | None = None
    use_mtp_vanilla: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        modules, depth = self.num_nextn_predict_layers, self.max_draft_len
        if modules is not None and depth > modules and depth % modules:
            raise ConfigError(
                f"max_draft_len={depth} is more than num_nextn_predict_layers={modules} and no "
                f"multiple of it; give a multiple of {modules}, at most {modules}, or leave "
                "num_nextn_predict_layers out"
            )
        hindrance = self._not_vanilla(depth if modules is None else modules)
        if self.use_mtp_vanilla and hindrance is not None:
            raise ConfigError(
                f"use_mtp_vanilla=True lets each module draft at a depth of its own, but "
                f"{hindrance}; change that, or give use_mtp_vanilla=False: then the first module "
                "drafts at every depth"
            )

    def network(self, found: DraftConfig) -> tuple[DraftConfig, tuple[str, ...]]:
        """The modules of a checkpoint that draft."""
        assert isinstance(found, MtpModulesConfig), "what MTP checkpoints are read as"
        count, steps = found.num_modules, self.max_draft_len
        if self.use_mtp_vanilla:
            return found.for_steps(steps), (f"each of {steps} MTP modules drafts at its own depth",)
        first, known = found.module.for_steps(steps), self.num_nextn_predict_layers
        if count == 1:
            return first, ()
        why: str | None = "use_mtp_vanilla is False"
        if self.use_mtp_vanilla is None:
            why = self._not_vanilla(count if known is None else min(count, known))
        if why is not None:
            return first, (f"of {count} MTP modules the first one drafts at every depth: {why}",)
        note = (
            f"of {count} MTP modules each drafts at its own depth ({steps} of them), as in "
            "TensorRT-LLM; with use_mtp_vanilla=False the first one drafts at every depth"
        )
        return found.for_steps(steps), (note,)

    def check_network(self, built: DraftConfig) -> None:
        vanilla = isinstance(built, MtpModulesConfig)
        if self.use_mtp_vanilla not in (None, vanilla):
            does = (
                "a module drafts at each depth" if vanilla else "one module drafts at every depth"
            )
            raise ConfigError(
                f"use_mtp_vanilla={self.use_mtp_vanilla} was asked for, but in the engine {does}, "
                "which is fixed at build; leave it out or rebuild the engine"
            )

    def _not_vanilla(self, num_modules: int) -> str | None:
        """Why that many modules cannot each draft at a depth of their own; None: they can."""
        tree = self.tree
        if tree.topk > 1:
            return (
                f"the drafts are trees (topk={tree.topk}), and module i reads i rows that are made "
                "of draft tokens: each path would need rows of its own"
            )
        if tree.num_steps > num_modules:
            return f"drafts of {tree.num_steps} steps are deeper than {num_modules} modules"
        return None

    def _resolve_tree(self) -> TreeShape:
        modules = self.num_nextn_predict_layers
        if modules is not None and modules < 1:
            raise ConfigError(f"num_nextn_predict_layers={modules} must be at least 1")
        if modules is not None and self.max_draft_len == LEFT_OUT and self.eagle_choices is None:
            self._set("max_draft_len", modules)
        return super()._resolve_tree()
