"""What a runtime without Python needs to know about an engine's networks, computed at build."""

from __future__ import annotations

from typing import Any

import torch

from trtspec.config.build_config import BuildConfig
from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.draft import DraftConfig
from trtspec.engine.memory import kv_bytes_per_token
from trtspec.models.layer_facts import buffer_dtype, decoder_facts

_OF_DECODERS = ("architecture", "vocab_size", "hidden_size", "eos_token_ids")


def network_facts(network: DraftConfig, build: BuildConfig, pass_bytes: int) -> dict[str, Any]:
    """Plain JSON values about a target or draft in a resolved build.

    architecture, vocab_size, hidden_size, eos_token_ids: of its decoder; absent without one.
    caches: the distinct caches of layers, each with its ``window`` and ``buffers``, which have a
    ``name``, ``heads``, a ``size`` per head, a ``dtype`` and a ``kind``. layers: for each layer,
    the index of its cache; None: it reads the cache of an earlier layer. kv_bytes_per_token: of all
    caches. pass_bytes: the weights that one pass reads; of experts, those of one row.
    """
    decoder = network.decoder
    own = {} if decoder is None else {name: getattr(decoder, name) for name in _OF_DECODERS}
    layers = [] if decoder is None else decoder_facts(decoder)
    caches = [(each.buffers, each.window) if each.buffers else None for each in layers]
    different = list(dict.fromkeys(cache for cache in caches if cache is not None))
    dtype: torch.dtype = getattr(torch, build.dtype)
    return {
        **own,
        "caches": [
            {"window": window, "buffers": [_buffer_facts(buffer, dtype) for buffer in buffers]}
            for buffers, window in different
        ],
        "layers": [None if cache is None else different.index(cache) for cache in caches],
        "kv_bytes_per_token": kv_bytes_per_token(decoder, build.dtype) if decoder else 0,
        "pass_bytes": pass_bytes,
    }


def _buffer_facts(buffer: CacheBuffer, dtype: torch.dtype) -> dict[str, Any]:
    own = str(buffer_dtype(buffer, dtype)).removeprefix("torch.")
    return {**buffer._asdict(), "dtype": own}
