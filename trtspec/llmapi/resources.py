"""The KV caches of a runtime: their sizes and their bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtspec.backends.device import free_memory, total_memory
from trtspec.backends.slots.kv_cache import SlotKVCacheManager
from trtspec.config.kv import CacheLayout, KvCacheConfig
from trtspec.config.model import ModelConfig
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig
from trtspec.engine.memory import (
    bytes_per_state,
    element_bytes,
    kv_bytes_per_token,
)
from trtspec.errors import EngineError
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.step.drafter import DraftCacheNeeds, DrafterNeeds
from trtspec.llmapi.limits import Limits
from trtspec.log import logger
from trtspec.models.layer_facts import keeps_states
from trtspec.ops.kv_cache import StateSizes


def open_resources(
    engine: EngineConfig,
    drafts: Sequence[EngineDraft],
    limits: Limits,
    needs: DrafterNeeds,
    kv: KvCacheConfig,
) -> ResourceManager:
    """The caches of the target and of each draft that has one, in the order of ``needs.caches``.

    Raises:
        EngineError: they do not fit into memory.
    """
    drafts = [draft for draft in drafts if draft.has_cache]
    layout, reuse = engine.layout, kv.enable_block_reuse
    if reuse and layout.is_slots:
        logger.info("prefix reuse is off: backend %s has slot caches", engine.build.backend)
        reuse = False
    elif reuse and needs.reads_every_row:
        logger.info("prefix reuse is off: the drafter reads every row")
        reuse = False
    kv = replace(kv, enable_block_reuse=reuse)
    numbers = _cache_blocks(engine, drafts, limits, needs, kv)
    caches = zip(
        _networks(engine, drafts), numbers, (DraftCacheNeeds(), *needs.caches), strict=True
    )
    target, *others = (
        _kv_cache(layout, network, number, reuse, own, _state_sizes(network, number, limits, kv))
        for network, number, own in caches
    )
    return ResourceManager(target, others, [cache.from_tokens for cache in needs.caches])


def _networks(engine: EngineConfig, drafts: Sequence[EngineDraft]) -> list[ModelConfig]:
    """Those with a cache, the target first."""
    decoders = engine.target, *(draft.network.decoder for draft in drafts)
    return [decoder for decoder in decoders if decoder is not None]


def _state_sizes(
    network: ModelConfig, blocks: int, limits: Limits, kv: KvCacheConfig
) -> StateSizes:
    if not keeps_states(network):
        return StateSizes()
    snapshots = max(blocks // kv.snapshot_blocks, 1) if kv.enable_block_reuse else 0
    return StateSizes(limits.max_batch_size, snapshots, kv.snapshot_blocks)


def _kv_cache(
    layout: CacheLayout,
    decoder: ModelConfig,
    num_blocks: int,
    reuse: bool,
    needs: DraftCacheNeeds,
    states: StateSizes,
) -> KVCacheManager | SlotKVCacheManager:
    size, lookahead = layout.tokens_per_block, needs.lookahead
    if layout.is_slots:
        return SlotKVCacheManager(num_blocks, size, lookahead=lookahead)
    window, sinks = widest_window(decoder), None
    if needs.window is not None:
        window, sinks = needs.window.size, -(-needs.window.sinks // size)
    return KVCacheManager(
        num_blocks, size, reuse, lookahead=lookahead, window=window, sinks=sinks, states=states
    )


def widest_window(decoder: ModelConfig) -> int:
    """The longest sliding window of the layers, which share a block table; 0: some layer attends to
    everything, so no block may be released."""
    windows = [layer.window for layer in decoder.layers.specs]
    return 0 if 0 in windows else max(windows)


def _cache_blocks(
    engine: EngineConfig,
    drafts: Sequence[EngineDraft],
    limits: Limits,
    needs: DrafterNeeds,
    kv: KvCacheConfig,
) -> list[int]:
    """Blocks of the target's cache and of each draft's: one budget in tokens, split by bytes per
    token.

    In a full batch each request may need room for its drafts besides its own tokens. States of
    requests are allotted first, and as many prefix snapshots as the cache's tokens could use.
    """
    size = engine.layout.tokens_per_block
    dtype = engine.build.dtype
    networks = _networks(engine, drafts)
    token_bytes = sum(kv_bytes_per_token(network, dtype) for network in networks)
    if needs.reads_every_row:  # a row's states are kept as long as its K/V
        states = len(engine.capture_layers) * engine.target.hidden_size
        token_bytes += states * element_bytes(dtype)
    batch = limits.max_batch_size
    # A slot of a slot cache has room for a sequence and its drafts.
    is_slots = engine.layout.is_slots
    wanted = batch * (size if is_slots else limits.max_seq_len + size)
    device = engine.build.device
    budget = max(0, kv.budget(free_memory(device), total_memory(device)))
    if device == "cpu":  # each rank has such caches, in the memory of one host
        budget //= engine.target.ranks
    states = engine.state_bytes(drafts, batch, limits.max_num_tokens)
    if states > budget:
        raise EngineError(
            f"the states of max_batch_size {batch} requests take {states} bytes, the caches may "
            f"take {budget}; lower max_batch_size, or raise the memory of kv_cache_config"
        )
    apart = kv.snapshot_blocks * size
    stretch = token_bytes * apart  # bytes of the tokens from one snapshot to the next
    if kv.enable_block_reuse:
        stretch += sum(bytes_per_state(network, dtype) for network in networks)
    affordable = (budget - states) * apart // max(stretch, 1)  # a state may be all there is
    tokens = min(wanted, affordable, kv.max_tokens or wanted)
    if tokens < size:
        fraction = "free_memory_fraction" if kv.memory_fraction is None else "memory_fraction"
        raise EngineError(
            f"the KV cache would hold {tokens} tokens, less than one "
            f"{'slot' if is_slots else 'block'} of {size}; raise "
            f"max_tokens or {fraction} of kv_cache_config ({stretch / apart:.0f} bytes a token)"
        )
    logger.info(
        "KV cache: %d tokens, %.3f GiB (%.0f bytes a token)",
        tokens,
        tokens * stretch / apart / 2**30,
        stretch / apart,
    )
    if states:
        logger.info("states of %d requests: %.3f GiB", batch, states / 2**30)
    extra = [needs.max_nodes, *(cache.slots for cache in needs.caches)]
    if kv.max_tokens is not None or is_slots:
        extra = [0] * len(extra)
    return [tokens // size + batch * -(-rows // size) for rows in extra]
