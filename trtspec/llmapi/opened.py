"""OpenedEngine: the engine folder of an `LLM` and what it runs from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.builder.build_engine import cached_engine
from trtspec.builder.pair import check_draft_depth
from trtspec.builder.target_drafts import TargetDrafts
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig, is_engine_folder
from trtspec.llmapi.engine_drafts import built_speculation, find_drafts
from trtspec.llmapi.engines import plan_engine
from trtspec.llmapi.options import LLMConfig
from trtspec.llmapi.prompts import tokenizer_of
from trtspec.log import progress_shown
from trtspec.speculative.recording import over_engine


@dataclass(frozen=True)
class OpenedEngine:
    """drafts: those in use, one for each method of ``speculation`` with a network. tokenizer: see
    `tokenizer_of`."""

    folder: Path
    engine: EngineConfig
    drafts: tuple[EngineDraft, ...]
    speculation: DecodingConfig | None
    tokenizer: Any

    @classmethod
    def of(
        cls,
        path: Path,
        config: LLMConfig,
        wanted: DecodingConfig | None,
        uses_built_drafts: bool,
        source: Callable[[Path, EngineConfig], ModelConfig],
    ) -> OpenedEngine:
        """Open an engine folder, or the engine of a checkpoint folder, building it unless the
        user's cache folder has it. ``uses_built_drafts``: by default, use what the folder was built
        for; ``source``: the target that a folder's drafts were made for.

        Raises:
            ConfigError, CheckpointError, BuildError, EngineError: see `LLM`.
        """
        if is_engine_folder(path):
            return cls._of_folder(path, config, wanted, uses_built_drafts, source)
        return cls._of_checkpoint(path, config, wanted)

    @classmethod
    def _of_folder(
        cls,
        path: Path,
        config: LLMConfig,
        wanted: DecodingConfig | None,
        uses_built_drafts: bool,
        source: Callable[[Path, EngineConfig], ModelConfig],
    ) -> OpenedEngine:
        engine = EngineConfig.read(path)
        built = built_speculation(engine)
        if wanted is None and uses_built_drafts:
            wanted = built
        at_hand = TargetDrafts(source(path, engine), None, None, built, engine.by_pass)
        if wanted is not None:
            wanted = wanted.resolve(at_hand)
            check_draft_depth(engine.target, wanted)
        drafts = find_drafts(engine, wanted, at_hand)
        for draft in drafts:
            draft.tell_doubts(path / draft.folder)
        tokenizer = tokenizer_of(config, path)
        return cls(path, engine, drafts, _fitted(wanted, engine), tokenizer)

    @classmethod
    def _of_checkpoint(
        cls, path: Path, config: LLMConfig, wanted: DecodingConfig | None
    ) -> OpenedEngine:
        plan = plan_engine(path, config, wanted)
        tokenizer = tokenizer_of(config, path)  # before a build, which would be for nothing
        with progress_shown(config.verbose):
            folder = cached_engine(plan)
        engine = EngineConfig.read(folder)
        return cls(folder, engine, engine.drafts, _fitted(plan.speculation, engine), tokenizer)


def _fitted(speculation: DecodingConfig | None, engine: EngineConfig) -> DecodingConfig | None:
    return None if speculation is None else over_engine(speculation, engine.extract_layers)
