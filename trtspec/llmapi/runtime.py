"""From an engine folder to a running executor: sessions, caches, drafter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from trtspec.config.build import BuildConfig
from trtspec.config.kv import KvCacheConfig
from trtspec.config.model import ModelConfig
from trtspec.config.speculative import DecodingConfig
from trtspec.engine.folder import (
    MODEL_NAME,
    ROLLOUT_NAME,
    WEIGHTS_NAME,
    CacheLayout,
    EngineConfig,
    SpeculationContract,
    read_weights,
)
from trtspec.engine.memory import kv_bytes_per_token
from trtspec.engine.session import AotiSession, EagerSession, Session
from trtspec.errors import ConfigError, EngineError
from trtspec.executor.drafter import Drafter, DrafterNeeds, NoDrafter
from trtspec.executor.kv_cache import KVCacheManager
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.resources import ResourceManager
from trtspec.executor.scheduler import Scheduler
from trtspec.log import logger
from trtspec.models.causal_lm import CausalLM
from trtspec.models.rollout import TreeRollout
from trtspec.speculative.registry import drafter_needs, make_drafter


@dataclass(frozen=True)
class Limits:
    """What a runtime may use of its engine; each at most what the engine was built for."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int

    @classmethod
    def of(
        cls,
        build: BuildConfig,
        max_batch_size: int | None,
        max_seq_len: int | None,
        max_num_tokens: int | None,
    ) -> Limits:
        """The build's limits, or smaller ones that were asked for; EngineError for larger ones."""
        asked = {
            "max_batch_size": max_batch_size,
            "max_seq_len": max_seq_len,
            "max_num_tokens": max_num_tokens,
        }
        chosen = {}
        for name, value in asked.items():
            built = getattr(build, name)
            if value is not None and value > built:
                raise EngineError(
                    f"{name}={value} exceeds the {built} that the engine was built for; "
                    f"lower it, or rebuild the engine with --{name} {value}"
                )
            chosen[name] = built if value is None else value
        return cls(**chosen)


def open_executor(
    folder: Path,
    engine: EngineConfig,
    limits: Limits,
    speculation: DecodingConfig | None,
    kv: KvCacheConfig,
) -> tuple[PyExecutor, ModelEngine, ModelEngine | None]:
    """Load an engine folder; returns the executor and its target and draft engines.

    Raises:
        EngineError: files are missing or damaged, or the caches do not fit into memory.
    """
    needs = drafter_needs(speculation) if speculation else DrafterNeeds()
    layout = engine.layout
    if needs.max_nodes + 1 > 64 * layout.mask_words:
        raise ConfigError(
            f"the drafts need {needs.max_nodes + 1} rows a step, the engine was built for "
            f"{64 * layout.mask_words}; lower the draft length or rebuild the engine for it"
        )
    blocks, draft_blocks = _cache_blocks(engine, limits, needs, kv)
    target = _open_engine(folder / "target", engine.target, engine, layout, blocks, None)
    draft = None
    if needs.has_draft_cache:
        assert engine.draft is not None and engine.speculation is not None
        draft = _open_engine(
            folder / "draft", engine.draft, engine, layout, draft_blocks, engine.speculation
        )
    size, reuse = layout.tokens_per_block, kv.enable_block_reuse
    resources = ResourceManager(
        KVCacheManager(blocks, size, reuse),
        KVCacheManager(draft_blocks, size, reuse) if draft else None,
    )
    scheduler = Scheduler(
        resources, limits.max_batch_size, limits.max_num_tokens, limits.max_seq_len, needs
    )
    drafter: Drafter = NoDrafter()
    if speculation is not None:
        drafter = make_drafter(speculation, draft, resources)
    return PyExecutor(target, resources, scheduler, drafter), target, draft


def _open_engine(
    folder: Path,
    model: ModelConfig,
    engine: EngineConfig,
    layout: CacheLayout,
    num_blocks: int,
    contract: SpeculationContract | None,
) -> ModelEngine:
    weights = read_weights(folder / WEIGHTS_NAME)
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    rollout: Session | None = None
    session: Session
    if engine.build.backend == "eager":
        with torch.device("meta"):
            module = CausalLM(model, dtype)
        try:
            module.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise EngineError(
                f"{folder / WEIGHTS_NAME} does not fit its engine ({reason}); rebuild the engine "
                "with trtspec-build"
            ) from error
        session = EagerSession(module, model.num_layers)
        if contract:
            tree = TreeRollout(
                module,
                contract.topk,
                contract.num_steps,
                contract.num_draft_tokens,
                layout.tokens_per_block,
            )
            rollout = EagerSession(tree, model.num_layers)
    else:
        session = AotiSession(folder / MODEL_NAME, weights)
        if contract:
            rollout = AotiSession(folder / ROLLOUT_NAME, weights)
    return ModelEngine(model, dtype, layout, num_blocks, session, rollout)


def _cache_blocks(
    engine: EngineConfig, limits: Limits, needs: DrafterNeeds, kv: KvCacheConfig
) -> tuple[int, int]:
    """Blocks of the target's and the draft's cache: one budget in tokens, shared out by bytes.

    Each request of a full batch may need its drafts on top of its own tokens.
    """
    size = engine.layout.tokens_per_block
    models = [engine.target, *([engine.draft] if needs.has_draft_cache and engine.draft else [])]
    token_bytes = sum(kv_bytes_per_token(m, engine.build.dtype) for m in models)
    wanted = limits.max_batch_size * (limits.max_seq_len + size)
    affordable = int(_free_memory() * kv.free_memory_fraction) // token_bytes
    tokens = min(wanted, affordable, kv.max_tokens or wanted)
    if tokens < size:
        raise EngineError(
            f"the KV cache would hold {tokens} tokens, less than one block of {size}; raise "
            f"max_tokens or free_memory_fraction of kv_cache_config ({token_bytes} bytes a token)"
        )
    logger.info(
        "KV cache: %d tokens, %.3f GiB (%d bytes a token)",
        tokens,
        tokens * token_bytes / 2**30,
        token_bytes,
    )
    base = tokens // size
    batch = limits.max_batch_size
    spare = batch * -(-needs.max_nodes // size), batch * -(-needs.draft_slots // size)
    if kv.max_tokens is not None:
        spare = 0, 0
    return base + spare[0], base + spare[1]


def _free_memory() -> int:
    """Bytes that can be had without swapping. Files that the kernel keeps in memory count as free:
    after a build they may fill nearly all of it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
