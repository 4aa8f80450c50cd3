"""build: makes the engine folder of a checkpoint, to open it several times or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.registry import backend_named, options_of
from trtspec.builder.build_engine import build_engine, cached_engine
from trtspec.builder.locate import find_model
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.builder.tokenizer import tokenizer_fingerprint, tokenizer_folder
from trtspec.config.build_config import ADAPTER_OPTIONS, WEIGHT_OPTIONS
from trtspec.config.decoding import DecodingConfig
from trtspec.config.kv import AUTO
from trtspec.engine.folder import EngineConfig, is_engine_folder
from trtspec.errors import ConfigError
from trtspec.llmapi.limits import Limits
from trtspec.llmapi.options import LLMConfig
from trtspec.llmapi.peer_options import part_speculation
from trtspec.log import logger, progress, progress_shown
from trtspec.speculative.options import parse_speculative_config


def build(
    model: str | Path,
    speculative_config: Mapping[str, Any] | DecodingConfig | None = None,
    output_dir: str | Path | None = None,
    **options: Any,
) -> Path:
    """Build the engine folder for a checkpoint and the draft named by ``speculative_config``.

    Compiles into the user's cache folder or into ``output_dir``, unless an equal engine exists
    there. `LLM` opens the result with its draft, or without it if ``speculative_config=False``.
    ``options`` are those of `LLM`; options that do not describe the engine have no effect. With
    ``tokenizer`` the engine carries that tokenizer instead of the checkpoint's. An engine folder is
    returned as it is if it was built with these options; whether it has the draft is checked when
    it is opened.

    Raises:
        ConfigError: options are unknown, out of range or contradict each other.
        CheckpointError, BuildError, EngineError: see their descriptions.
    """
    asked, options = part_speculation(speculative_config, options)
    config, wanted = LLMConfig(**options), parse_speculative_config(asked)
    path = find_model(model)
    if is_engine_folder(path):
        engine = EngineConfig.read(path)
        check_engine(engine, config)
        _check_tokenizer(engine, config.tokenizer)
        return path
    plan = plan_engine(path, config, wanted)
    with progress_shown(config.verbose):
        return cached_engine(plan) if output_dir is None else build_engine(plan, Path(output_dir))


def _check_tokenizer(engine: EngineConfig, asked: str | None) -> None:
    """Raise ConfigError if an engine carries a different tokenizer than requested."""
    if asked is None:
        return
    fingerprint = tokenizer_fingerprint(tokenizer_folder(asked))
    built = engine.fingerprints.get("tokenizer")
    if fingerprint != built:
        raise ConfigError(
            f"tokenizer={asked!r} (fingerprint {fingerprint}) is not the one in the engine folder "
            f"({built}); leave it out, build from the checkpoint, or give it to LLM"
        )


def plan_engine(
    checkpoint: Path, config: LLMConfig, speculation: DecodingConfig | None
) -> BuildPlan:
    """Plan what `build` would build; the plan is logged."""
    with progress_shown(config.verbose), progress("read the checkpoint", is_long=False):
        plan = plan_build(
            checkpoint,
            config.build_config(),
            speculation,
            config.skip_tokenizer_init,
            config.verify_checkpoint,
            tokenizer=config.tokenizer,
        )
    logger.info("plan\n%s", plan.describe())
    return plan


def check_engine(engine: EngineConfig, config: LLMConfig) -> Limits:
    """The limits within which a built engine is used.

    Raises:
        ConfigError: ``config`` changes an option that is fixed in the engine.
        EngineError: ``config`` asks for more than the engine was built for.
    """
    build = engine.build
    asked = config.build_config()
    backend_named(asked.backend)
    ranks = ("tensor_parallel_size", "enable_expert_parallel")
    fixed = ("dtype", "tokens_per_block", "backend", "device", *ranks)
    for name in (*fixed, *WEIGHT_OPTIONS, *ADAPTER_OPTIONS):
        given = getattr(config, name)
        if given in (None, "auto", False):
            continue
        if getattr(asked, name) != getattr(build, name):
            raise ConfigError(
                f"{name}={given!r} was asked for, but the engine was built with "
                f"{getattr(build, name)!r}; leave it out or rebuild the engine"
            )
    if asked.kv_cache_dtype not in (AUTO, build.kv_cache_dtype):
        raise ConfigError(
            f"kv_cache_dtype={asked.kv_cache_dtype!r} was asked for, but the engine was built with "
            f"{build.kv_cache_dtype!r}; leave it out or rebuild the engine"
        )
    backend = engine.backend
    options = options_of(backend, asked.backend_options)
    built = options_of(backend, build.backend_options)
    if backend.options_differ(options, built):
        raise ConfigError(
            f"backend_options={options} were asked for, but the engine was built with {built}; "
            "leave them out or rebuild the engine"
        )
    return Limits.of(build, config.max_batch_size, config.max_seq_len, config.max_num_tokens)
