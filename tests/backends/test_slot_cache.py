"""The books of a slot cache under random schedules, and its rows when they are moved."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from trtspec.backends.slots.kv_cache import SlotKVCacheManager
from trtspec.config.kv import CacheLayout
from trtspec.config.layer import Layers
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.executor.engines.kv_tensors import KVTensors

from ..tiny_config import tiny_config

LENGTH = 12
CONFIG = tiny_config("llama", 16, 16, 16, 2, 4, 2, 4, 1e-5, 64)
OTHERS = (CONFIG.layers[0].with_mixer(num_kv_heads=n, head_dim=d) for n, d in ((1, 6), (4, 4)))
MIXED = replace(CONFIG, layers=Layers.of([*CONFIG.layers, *OTHERS, CONFIG.layers[0]]))


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules(seed: int) -> None:
    """No slot is lost or shared, a refusal changes nothing, and lengths are what was committed."""
    rng, cache = random.Random(seed), SlotKVCacheManager(3, LENGTH)
    committed: dict[int, int] = {}
    for step in range(200):
        action = rng.random()
        if action < 0.2 and len(committed) < 5:
            cache.begin(step, [1, 2, 3], 0)
            committed[step] = 0
        elif committed:
            request = rng.choice(list(committed))
            had = committed[request]
            if action < 0.7:
                wanted, table = rng.randint(had, LENGTH + 1), cache.block_table(request)
                room = cache.room(request)
                if cache.reserve(request, wanted):
                    kept = rng.randint(had, wanted)
                    cache.commit(request, [0] * wanted, kept)
                    committed[request] = kept
                else:
                    assert wanted > room
                    assert torch.equal(table, cache.block_table(request))
            else:
                cache.free(request)
                del committed[request]
        cache.check_invariants()
        assert cache.committed_lengths() == committed
        held = [tuple(cache.block_table(request).tolist()) for request in committed]
        assert sum(map(len, held)) + cache.num_free_blocks == 3
        assert len({slot for slots in held for slot in slots}) == sum(map(len, held))


def test_the_lowest_free_slot_is_taken() -> None:
    cache = SlotKVCacheManager(3, LENGTH)
    for request in range(3):
        cache.begin(request, [], 0)
        assert cache.reserve(request, 1)
    cache.free(0)
    cache.free(1)
    cache.begin(7, [], 0)
    assert cache.reserve(7, 5)
    assert cache.block_table(7).tolist() == [0]
    assert cache.slots(7, [0, 4]).tolist() == [0, 4]
    assert cache.slots(2, [0]).tolist() == [2 * LENGTH]
    assert cache.match([1] * 40) == 0


def test_misuse_is_refused() -> None:
    cache = SlotKVCacheManager(1, LENGTH)
    with pytest.raises(RuntimeError, match="request 3 has not begun"):
        cache.committed(3)
    cache.begin(3, [], 0)
    assert not cache.reserve(3, LENGTH + 1)
    assert cache.reserve(3, 2)
    with pytest.raises(RuntimeError, match="has not reserved"):
        cache.slots(3, [2])
    with pytest.raises(RuntimeError, match="commits 3 rows"):
        cache.commit(3, [0] * 9, 3)
    cache.begin(4, [], 0)
    assert cache.room(4) == 0 and not cache.reserve(4, 1)
    with pytest.raises(ConfigError, match="0 slots"):
        SlotKVCacheManager(0, LENGTH)


@pytest.mark.parametrize("config", [CONFIG, MIXED])
def test_rows_move_with_all_their_heads(config: ModelConfig) -> None:
    """The same moves in a paged cache and in a slot one, both as slots of LENGTH rows."""
    layouts = [CacheLayout(LENGTH, 1, 1), CacheLayout(LENGTH, 1, 1, is_slots=True)]
    paged, slots = (
        KVTensors.new(config, torch.float32, x, 3, torch.device("cpu")) for x in layouts
    )
    noise = torch.Generator().manual_seed(1)
    for a, b in zip(paged.all, slots.all, strict=True):
        a.copy_(torch.randn(a.shape, generator=noise))
        b.copy_(a.transpose(1, 2))
    source, wanted = torch.tensor([3, 5, 25, 30]), torch.tensor([1, 2, 24, 25])
    before = [a.clone() for a in paged.all]
    paged.compact(source, wanted)
    slots.compact(source, wanted)
    for a, b, old in zip(paged.all, slots.all, before, strict=True):
        assert torch.equal(a, b.transpose(1, 2))
        moved = old.flatten(0, 1).clone()
        moved[wanted] = old.flatten(0, 1)[source]
        assert torch.equal(a.flatten(0, 1), moved)
