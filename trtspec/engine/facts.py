"""What a runtime without Python asks of an engine's networks, worked out when it is built."""

from __future__ import annotations

from typing import Any

from trtspec.config.build_config import BuildConfig
from trtspec.config.draft import DraftConfig
from trtspec.engine.memory import kv_bytes_per_token
from trtspec.models.layer_facts import KVCache, decoder_facts

_OF_DECODERS = ("architecture", "vocab_size", "hidden_size", "eos_token_ids")


def network_facts(network: DraftConfig, build: BuildConfig, pass_bytes: int) -> dict[str, Any]:
    """Plain values for JSON of a target or a draft in a resolved build.

    architecture, vocab_size, hidden_size, eos_token_ids: of its decoder; absent without one.
    caches: the kinds of caches that layers have, each with ``num_kv_heads``, ``head_dim``,
    ``window`` and, where V's is another, ``value_dim``. layers: for each layer, the index of its
    cache there; None: it reads that of an earlier one. kv_bytes_per_token: K and V of all layers.
    pass_bytes: the weights that one pass reads, of experts those of one row.
    """
    decoder = network.decoder
    own = {} if decoder is None else {name: getattr(decoder, name) for name in _OF_DECODERS}
    layers = [] if decoder is None else decoder_facts(decoder)
    caches = [None if each.cache is None else (each.cache, each.window) for each in layers]
    different = list(dict.fromkeys(cache for cache in caches if cache is not None))
    return {
        **own,
        "caches": [_cache_facts(cache, window) for cache, window in different],
        "layers": [None if cache is None else different.index(cache) for cache in caches],
        "kv_bytes_per_token": kv_bytes_per_token(decoder, build.dtype) if decoder else 0,
        "pass_bytes": pass_bytes,
    }


def _cache_facts(cache: KVCache, window: int) -> dict[str, int]:
    facts = {"num_kv_heads": cache.num_kv_heads, "head_dim": cache.head_dim, "window": window}
    return facts if cache.value_dim == cache.head_dim else facts | {"value_dim": cache.value_dim}
