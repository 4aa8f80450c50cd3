"""CacheSizes: the sizes of a network's KV caches."""

from __future__ import annotations

from typing import NamedTuple

import torch

from trtspec.config.model import ModelConfig
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import built_dtype
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.models.layer_facts import cache_places
from trtspec.ops.kv_cache import KVCache


class CacheSizes(NamedTuple):
    """Numbers of blocks, states and rows per call; see `KVTensors.new`."""

    num_blocks: int
    num_states: int
    num_rows: int

    @classmethod
    def of(cls, books: KVCache, num_rows: int = 1, num_scratch: int = 1) -> CacheSizes:
        """For these books; behind their states are such as no request has, one at least, which is
        that of padding. A draft's rows are certain, so that one of a call is never kept."""
        return cls(books.num_blocks, books.states.num_slots + num_scratch, num_rows)

    def caches(self, engine: EngineConfig, network: ModelConfig) -> KVTensors:
        """Allocate the caches of one of the engine's networks on its device."""
        blocks, states, rows = self
        place = engine.layout, blocks, torch.device(engine.build.device)
        dtype = built_dtype(engine)
        return KVTensors.new(network, dtype, *place, num_states=states, num_rows=rows)


def draft_tensors(
    engine: EngineConfig, draft: EngineDraft, target: KVTensors, sizes: CacheSizes | None
) -> KVTensors | None:
    """The K/V that a draft's calls are given: its own, of these ``sizes``, or some of the
    target's."""
    if sizes is not None and draft.network.decoder is not None:
        return sizes.caches(engine, draft.network.decoder)
    places = cache_places(engine.target)
    read = [places[layer] for layer in draft.target_layers]
    return target.part(read) if read else None
