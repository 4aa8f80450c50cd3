"""From an engine folder to a running executor: sessions, caches, drafter."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from trtspec.config.build import BuildConfig
from trtspec.config.cuda_graph import CudaGraphConfig
from trtspec.config.kv import KvCacheConfig
from trtspec.config.speculative import DecodingConfig
from trtspec.engine.cuda_graph import CudaGraphSession
from trtspec.engine.device import free_device_memory
from trtspec.engine.drafts import DRAFT_MODEL, DRAFT_ROLLOUT
from trtspec.engine.folder import WEIGHTS_NAME, EngineConfig, read_weights
from trtspec.engine.graphs import (
    TARGET_MODEL,
    bind,
    draft_graphs,
    draft_module,
    make_graph,
    target_module,
    with_borrowed,
)
from trtspec.engine.memory import element_bytes, kv_bytes_per_token
from trtspec.engine.session import AotiSession, EagerSession, Session
from trtspec.errors import ConfigError, EngineError
from trtspec.executor.acceptance_rule import AcceptanceRule
from trtspec.executor.buckets import RowBuckets
from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.drafter import Drafter, DrafterNeeds, NoDrafter
from trtspec.executor.heads_engine import HeadsEngine
from trtspec.executor.kv_cache import KVCacheManager
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.resources import ResourceManager
from trtspec.executor.scheduler import Scheduler
from trtspec.executor.simulation import SimulatedAcceptance
from trtspec.executor.typical import TypicalAcceptance
from trtspec.log import logger
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
    graphs: CudaGraphConfig | None = None,
) -> tuple[PyExecutor, ModelEngine, ModelEngine | HeadsEngine | None]:
    """Load an engine folder; returns the executor and its target and draft engines.

    ``graphs``: the sizes that the calls of generating steps are padded to, and on CUDA captured in;
    None: neither.

    Raises:
        EngineError: files are missing or damaged, or the caches do not fit into memory.
    """
    needs = drafter_needs(speculation) if speculation else DrafterNeeds()
    if needs.has_draft_cache and engine.speculation is not None:
        # Drafts may be cut to fewer steps, the engine rolls out all that it was built for.
        needs = replace(needs, draft_slots=engine.speculation.tree.num_rollout_rows)
    layout = engine.layout
    if needs.max_nodes + 1 > 64 * layout.mask_words:
        raise ConfigError(
            f"the drafts need {needs.max_nodes + 1} rows a step, the engine was built for "
            f"{64 * layout.mask_words}; lower the draft length or rebuild the engine for it"
        )
    device = engine.build.device
    weights = read_weights(folder / "target" / WEIGHTS_NAME, device)
    draft_weights = None
    if needs.has_draft_engine and engine.draft is not None:
        draft_weights = read_weights(folder / "draft" / WEIGHTS_NAME, device)
    # Now that the weights are where they stay: what they leave is for the caches.
    blocks, draft_blocks = _cache_blocks(engine, limits, needs, kv)
    sizes = graphs.sizes(limits.max_batch_size) if graphs else ()
    padding = graphs.enable_padding if graphs else False
    buckets = RowBuckets(sizes, 1 + needs.max_nodes, padding) if sizes else None
    target = _open_target(folder, engine, blocks, weights, buckets)
    draft = None
    if draft_weights is not None:
        buckets = RowBuckets(sizes, 1 + needs.max_depth, padding) if sizes else None
        draft = _open_draft(folder, engine, draft_blocks, weights, draft_weights, buckets)
    if device == "cuda":
        _capture_graphs([target, *([draft] if draft else [])], buckets)
    size, reuse = layout.tokens_per_block, kv.enable_block_reuse and not needs.reads_every_row
    if reuse != kv.enable_block_reuse:
        logger.info("prefix reuse is off: %s reads every row", getattr(speculation, "method", None))
    resources = ResourceManager(
        KVCacheManager(blocks, size, reuse),
        # A row made of the target's state depends on the token after it as well.
        KVCacheManager(draft_blocks, size, reuse, lookahead=int(needs.reads_hidden))
        if needs.has_draft_cache
        else None,
    )
    scheduler = Scheduler(
        resources, limits.max_batch_size, limits.max_num_tokens, limits.max_seq_len, needs
    )
    drafter: Drafter = NoDrafter()
    rule = None
    if speculation is not None:
        drafter = make_drafter(speculation, draft, resources)
        rule = _acceptance_rule(speculation)
    return PyExecutor(target, resources, scheduler, drafter, rule), target, draft


def _acceptance_rule(speculation: DecodingConfig) -> AcceptanceRule | None:
    """The rule that replaces lossless acceptance, if one was asked for."""
    rates, typical = speculation.simulate_acceptance, speculation.typical_acceptance
    if rates is not None:
        logger.warning(
            "simulate_acceptance=%s: drafts are accepted by chance, the text means nothing",
            list(rates),
        )
        return SimulatedAcceptance(rates)
    if typical is not None:
        logger.warning(
            "lossy_typical_acceptance (posterior_threshold %s, posterior_alpha %s): above "
            "temperature 0 the text is not the model's own",
            typical.posterior_threshold,
            typical.posterior_alpha,
        )
        return TypicalAcceptance(typical)
    return None


def _open_target(
    folder: Path,
    engine: EngineConfig,
    num_blocks: int,
    weights: Mapping[str, Tensor],
    buckets: RowBuckets | None,
) -> ModelEngine:
    session: Session
    device = engine.build.device
    if engine.build.backend == "eager":
        with torch.device("meta"):
            module = target_module(engine)
        bind(module, weights, str(folder / "target" / WEIGHTS_NAME))
        session = EagerSession(module, make_graph(engine, TARGET_MODEL, module).signature, device)
    else:
        session = AotiSession(folder / TARGET_MODEL, weights, device)
    session = _with_graphs(session, device, buckets, engine.target.num_layers)
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return ModelEngine(
        engine.target, dtype, engine.layout, num_blocks, session, device=device, buckets=buckets
    )


def _open_draft(
    folder: Path,
    engine: EngineConfig,
    num_blocks: int,
    target: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    buckets: RowBuckets | None,
) -> ModelEngine | HeadsEngine:
    """The draft with its rollout; what it borrows of the target is the target's own memory."""
    assert engine.draft is not None
    device = engine.build.device
    with torch.device("meta"):
        module = draft_module(engine)
    weights = with_borrowed(module, own, target)
    sessions: dict[str, Session] = {}
    if engine.build.backend == "eager":
        bind(module, weights, str(folder / "draft" / WEIGHTS_NAME))
    for name in draft_graphs(engine):
        if engine.build.backend == "eager":
            graph = make_graph(engine, name, module)
            sessions[name] = EagerSession(graph.module, graph.signature, device)
        else:
            sessions[name] = AotiSession(folder / name, weights, device)
    decoder, rollout = engine.draft_decoder, sessions[DRAFT_ROLLOUT]
    if decoder is None:
        return HeadsEngine(rollout, device)
    rollout = _with_graphs(rollout, device, buckets, decoder.num_layers)
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return ModelEngine(
        decoder,
        dtype,
        engine.layout,
        num_blocks,
        sessions[DRAFT_MODEL],
        rollout,
        device=device,
        buckets=buckets,
        hidden_in=len(engine.draft.capture_layers) * engine.target.hidden_size,
    )


def _with_graphs(
    session: Session, device: str, buckets: RowBuckets | None, num_layers: int
) -> Session:
    """The session, on CUDA with graphs for the buckets."""
    if device == "cpu" or buckets is None:
        return session
    sizes = {(bucket.rows, bucket.requests) for bucket in buckets.all}
    return CudaGraphSession(session, sizes, 2 * num_layers)


def _capture_graphs(engines: Sequence[CountedEngine], buckets: RowBuckets | None) -> None:
    """Capture now, so that no request waits for it."""
    if buckets is None:
        return
    began = time.perf_counter()
    for engine in engines:
        engine.warm_up()
    sizes = ", ".join(str(bucket.requests) for bucket in buckets.all)
    logger.info(
        "CUDA graphs for batches of %s captured in %.1f s", sizes, time.perf_counter() - began
    )


def _cache_blocks(
    engine: EngineConfig, limits: Limits, needs: DrafterNeeds, kv: KvCacheConfig
) -> tuple[int, int]:
    """Blocks of the target's and the draft's cache: one budget in tokens, shared out by bytes.

    Each request of a full batch may need its drafts on top of its own tokens.
    """
    size = engine.layout.tokens_per_block
    draft = engine.draft_decoder if needs.has_draft_cache else None
    models = [engine.target, *([draft] if draft else [])]
    token_bytes = sum(kv_bytes_per_token(m, engine.build.dtype) for m in models)
    if needs.reads_every_row:  # the states of a row are kept as long as its K/V
        states = len(engine.capture_layers) * engine.target.hidden_size
        token_bytes += states * element_bytes(engine.build.dtype)
    wanted = limits.max_batch_size * (limits.max_seq_len + size)
    free = free_device_memory() if engine.build.device == "cuda" else _free_memory()
    affordable = int(free * kv.free_memory_fraction) // token_bytes
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
