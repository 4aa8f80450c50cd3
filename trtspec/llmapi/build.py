"""build: the engine folder of a checkpoint, for opening it more than once or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.builder.build import build_engine, cached_engine
from trtspec.builder.locate import find_model
from trtspec.builder.plan import plan_build
from trtspec.config.llm import LLMConfig
from trtspec.config.speculative import DecodingConfig, parse_speculative_config
from trtspec.engine.folder import is_engine_folder
from trtspec.log import logger


def build(
    model: str | Path,
    speculative_config: Mapping[str, Any] | DecodingConfig | None = None,
    output_dir: str | Path | None = None,
    **options: Any,
) -> Path:
    """The engine folder for a checkpoint and, by ``speculative_config``, its draft.

    Compiles into the user's cache folder, or into ``output_dir``, unless an equal engine is there
    already. `LLM` opens the result with its draft, and with ``speculative_config=False`` without.
    ``options`` are those of `LLM`; the ones that do not describe the engine have no effect. An
    engine folder is returned as it is: `LLM` compares what is asked of it when it opens it.

    Raises:
        ConfigError: options that are unknown, out of range or do not fit each other.
        CheckpointError, BuildError: see their descriptions.
    """
    config, wanted = LLMConfig(**options), parse_speculative_config(speculative_config)
    path = find_model(model)
    if is_engine_folder(path):
        return path
    return build_folder(path, config, wanted, output_dir)


def build_folder(
    checkpoint: Path,
    config: LLMConfig,
    speculation: DecodingConfig | None,
    output_dir: str | Path | None = None,
) -> Path:
    """As `build`, from what it has read already."""
    plan = plan_build(checkpoint, config.build_config(), speculation)
    logger.info("plan\n%s", plan.describe())
    return cached_engine(plan) if output_dir is None else build_engine(plan, Path(output_dir))
