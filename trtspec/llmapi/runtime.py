"""From an engine folder to a running executor: sessions, caches, drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from trtspec.backends.cuda_graph import CudaGraphSession
from trtspec.backends.device import free_memory
from trtspec.backends.session import Session
from trtspec.backends.shape import TARGET, WEIGHTS_NAME
from trtspec.backends.slots.kv_cache import SlotKVCacheManager
from trtspec.config.build import BuildConfig
from trtspec.config.cuda_graph import CudaGraphConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.kv import CacheLayout, KvCacheConfig
from trtspec.config.model import ModelConfig
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig, read_weights
from trtspec.engine.memory import element_bytes, kv_bytes_per_token, weight_bytes
from trtspec.engine.open import OpenDraft, judges, open_draft, open_target
from trtspec.engine.weight_record import check_weights
from trtspec.errors import ConfigError, EngineError
from trtspec.executor.acceptance_rule import AcceptanceRule
from trtspec.executor.buckets import RowBuckets
from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.drafter import DraftCacheNeeds, Drafter, DrafterNeeds, NoDrafter
from trtspec.executor.heads_engine import HeadsEngine
from trtspec.executor.kv_cache import KVCacheManager
from trtspec.executor.metrics import ExecutorMetrics
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.resources import ResourceManager
from trtspec.executor.scheduler import Scheduler
from trtspec.executor.simulation import SimulatedAcceptance
from trtspec.executor.typical import TypicalAcceptance
from trtspec.log import logger
from trtspec.speculative.base import DraftEngine, Steps
from trtspec.speculative.draft_kind import DRAFT_MODEL, DRAFT_ROLLOUT, DRAFT_STEP
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
    drafts: Sequence[EngineDraft],
    limits: Limits,
    speculation: DecodingConfig | None,
    kv: KvCacheConfig,
    graphs: CudaGraphConfig | None = None,
    wrap_drafter: Callable[[Drafter], Drafter] = lambda drafter: drafter,
) -> tuple[PyExecutor, ModelEngine, list[ModelEngine | HeadsEngine]]:
    """Load an engine folder; returns the executor and its target and draft engines.

    ``drafts``: those that ``speculation`` drafts with, in the order of its members. ``graphs``: the
    sizes that the calls of generating steps are padded to, and on CUDA captured in; None: neither.
    ``wrap_drafter``: what the executor shall ask in place of the drafter.

    Raises:
        EngineError: files are missing or damaged, or the caches do not fit into memory.
    """
    needs = drafter_needs(speculation) if speculation else DrafterNeeds()
    cached = [draft for draft in drafts if draft.network.decoder is not None]
    caches = (_as_built(*pair) for pair in zip(needs.caches, cached, strict=True))
    needs = replace(needs, caches=tuple(caches))
    layout = engine.layout
    if needs.max_nodes + 1 > engine.speculative_rows:
        raise ConfigError(
            f"the drafts need {needs.max_nodes + 1} rows a step, the engine was built for "
            f"{engine.speculative_rows}; lower the draft length or rebuild the engine for it"
        )
    device = engine.build.device
    sizes = graphs.sizes(limits.max_batch_size) if graphs else ()
    padding = graphs.enable_padding if graphs else False
    # Some sessions pad their calls, and capture them, themselves.
    inner_sizes = sizes if padding else ()
    for name in (TARGET, *(draft.folder for draft in drafts)):
        check_weights(folder / name / WEIGHTS_NAME, engine.weights.get(name, {}))
    # Of engines that have weights of their own, the few tensors beside them are copied.
    home = "cpu" if engine.backend.keeps_weights else device
    weights = read_weights(folder / TARGET / WEIGHTS_NAME, home)
    draft_weights = [read_weights(folder / d.folder / WEIGHTS_NAME, home) for d in drafts]
    target_session = open_target(folder, engine, weights, inner_sizes)
    draft_sessions = [
        open_draft(folder, engine, draft, own, weights, inner_sizes)
        for draft, own in zip(drafts, draft_weights, strict=True)
    ]
    # Now that the weights are where they stay: what they leave is for the caches.
    decoders = [draft.network.decoder for draft in cached if draft.network.decoder is not None]
    blocks, *draft_blocks = _cache_blocks(engine, decoders, limits, needs, kv)
    buckets = RowBuckets(sizes, 1 + needs.max_nodes, padding) if sizes else None
    target = _open_target(engine, blocks, target_session, buckets)
    # What a draft is fed at once are the rows that were accepted of whatever drafts there were, and
    # those that were not final when they were fed before.
    again = max([0, *(cache.lookahead - 1 for cache in needs.caches)])
    buckets = RowBuckets(sizes, 1 + needs.max_depth + again, padding) if sizes else None
    own_blocks = iter(draft_blocks)
    opened = [
        _open_draft(engine, draft, next(own_blocks) if draft in cached else 0, sessions, buckets)
        for draft, sessions in zip(drafts, draft_sessions, strict=True)
    ]
    if device == "cuda":
        _capture_graphs([target, *opened], buckets)
    reuse = kv.enable_block_reuse
    if reuse and layout.is_slots:
        logger.info("prefix reuse is off: backend %s has slot caches", engine.build.backend)
        reuse = False
    elif reuse and needs.reads_every_row:
        logger.info("prefix reuse is off: %s reads every row", getattr(speculation, "method", None))
        reuse = False
    resources = ResourceManager(
        _kv_cache(layout, blocks, reuse),
        [
            _kv_cache(layout, number, reuse, cache.lookahead)
            for number, cache in zip(draft_blocks, needs.caches, strict=True)
        ],
        [cache.from_tokens for cache in needs.caches],
    )
    drafter: Drafter = NoDrafter()
    rule = skips = None
    if speculation is not None:
        own_caches = iter(resources.draft_caches)
        engines = [
            DraftEngine(
                session, next(own_caches) if draft in cached else None, engine.states_of(draft)
            )
            for draft, session in zip(drafts, opened, strict=True)
        ]
        steps = Steps(target, limits.max_batch_size, limits.max_num_tokens)
        made = make_drafter(speculation, engines, steps)
        drafter = wrap_drafter(made)
        rule = _acceptance_rule(speculation)
        skips = made.skips_drafts
    scheduler = Scheduler(
        resources, limits.max_batch_size, limits.max_num_tokens, limits.max_seq_len, needs, skips
    )
    metrics = ExecutorMetrics(target, opened)
    return PyExecutor(target, resources, scheduler, drafter, rule, metrics), target, opened


def _as_built(cache: DraftCacheNeeds, draft: EngineDraft) -> DraftCacheNeeds:
    """What a drafter needs of its cache: drafts may be cut to fewer steps, an engine rolls out all
    that it was built for."""
    lookahead = draft.lookahead
    lookahead = cache.lookahead if lookahead is None else lookahead
    return replace(cache, slots=draft.slots, lookahead=lookahead)


def _kv_cache(
    layout: CacheLayout, num_blocks: int, reuse: bool, lookahead: int = 0
) -> KVCacheManager | SlotKVCacheManager:
    if layout.is_slots:
        return SlotKVCacheManager(num_blocks, layout.tokens_per_block, lookahead=lookahead)
    return KVCacheManager(num_blocks, layout.tokens_per_block, reuse, lookahead=lookahead)


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
    engine: EngineConfig, num_blocks: int, session: Session, buckets: RowBuckets | None
) -> ModelEngine:
    session = _with_graphs(session, engine, buckets)
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return ModelEngine(
        engine.target,
        dtype,
        engine.layout,
        num_blocks,
        session,
        device=engine.build.device,
        buckets=buckets,
        pass_bytes=weight_bytes(engine.target, engine.build),
        judges=judges(engine),
    )


def _open_draft(
    engine: EngineConfig,
    draft: EngineDraft,
    num_blocks: int,
    opened: OpenDraft,
    buckets: RowBuckets | None,
) -> ModelEngine | HeadsEngine:
    """A draft with its rollout."""
    device = engine.build.device
    pass_bytes = weight_bytes(draft.network, engine.build)
    sessions = opened.sessions
    decoder, rollout = draft.network.decoder, sessions[DRAFT_ROLLOUT]
    if decoder is None:
        return HeadsEngine(rollout, device, pass_bytes)
    rollout = _with_graphs(rollout, engine, buckets)
    step = sessions.get(DRAFT_STEP)
    if step is not None:
        step = _with_graphs(step, engine, buckets)
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return ModelEngine(
        decoder,
        dtype,
        engine.layout,
        num_blocks,
        sessions.get(DRAFT_MODEL),
        rollout,
        step,
        device=device,
        buckets=buckets,
        hidden_in=len(draft.network.capture_layers) * engine.target.hidden_size,
        pass_bytes=pass_bytes,
        rollout_passes=opened.rollout_passes,
    )


def _with_graphs(session: Session, engine: EngineConfig, buckets: RowBuckets | None) -> Session:
    """The session, on CUDA with graphs for the buckets, unless those are inside it."""
    if engine.build.device == "cpu" or engine.backend.captures_calls or buckets is None:
        return session
    sizes = {(bucket.rows, bucket.requests) for bucket in buckets.all}
    return CudaGraphSession(session, sizes)


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
    engine: EngineConfig,
    drafts: Sequence[ModelConfig],
    limits: Limits,
    needs: DrafterNeeds,
    kv: KvCacheConfig,
) -> list[int]:
    """Blocks of the target's cache and of each draft's: one budget in tokens, shared out by bytes.

    Each request of a full batch may need its drafts on top of its own tokens.
    """
    size = engine.layout.tokens_per_block
    token_bytes = sum(kv_bytes_per_token(m, engine.build.dtype) for m in (engine.target, *drafts))
    if needs.reads_every_row:  # the states of a row are kept as long as its K/V
        states = len(engine.capture_layers) * engine.target.hidden_size
        token_bytes += states * element_bytes(engine.build.dtype)
    batch = limits.max_batch_size
    # A slot of a slot cache has room for a sequence and its drafts.
    is_slots = engine.layout.is_slots
    wanted = batch * (size if is_slots else limits.max_seq_len + size)
    free = free_memory(engine.build.device)
    affordable = int(free * kv.free_memory_fraction) // token_bytes
    tokens = min(wanted, affordable, kv.max_tokens or wanted)
    if tokens < size:
        raise EngineError(
            f"the KV cache would hold {tokens} tokens, less than one "
            f"{'slot' if is_slots else 'block'} of {size}; raise "
            f"max_tokens or free_memory_fraction of kv_cache_config ({token_bytes} bytes a token)"
        )
    logger.info(
        "KV cache: %d tokens, %.3f GiB (%d bytes a token)",
        tokens,
        tokens * token_bytes / 2**30,
        token_bytes,
    )
    extra = [needs.max_nodes, *(cache.slots for cache in needs.caches)]
    if kv.max_tokens is not None or is_slots:
        extra = [0] * len(extra)
    return [tokens // size + batch * -(-rows // size) for rows in extra]
