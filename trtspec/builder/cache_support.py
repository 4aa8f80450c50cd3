"""What caches the graphs of a backend keep, and which of them a draft can read."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.backends.registry import backend_named
from trtspec.config.build_config import BuildConfig
from trtspec.config.kv import EIGHT_BITS
from trtspec.config.model import ModelConfig
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import ConfigError
from trtspec.models.layer_facts import keeps_states


def require_eight_bits(build: BuildConfig) -> None:
    """ConfigError where K/V of 8 bits is not read: by graphs that call no ops."""
    if not backend_named(build.backend).runs_ops:
        raise ConfigError(
            f"kv_cache_dtype {EIGHT_BITS}: attention of backend {build.backend!r} reads no K/V of "
            "8 bits in this version; leave it out, or build with the default backend"
        )


def require_states(target: ModelConfig, build: BuildConfig) -> None:
    """ConfigError where states are not kept: by graphs over slots, or behind plugins."""
    if keeps_states(target) and not backend_named(build.backend).runs_ops:
        raise ConfigError(
            f"{target.architecture} has layers that keep states, and graphs of backend "
            f"{build.backend!r} keep none; choose another, such as the default one"
        )


def require_target_caches(
    layers: Sequence[int], speculative: TreeDecodingConfig, build: BuildConfig
) -> None:
    """ConfigError where a draft reads K/V of the target's that no other network can read."""
    if layers and build.tensor_parallel_size > 1:
        raise ConfigError(
            f"method {speculative.method!r} reads the target's K/V, of which each rank of "
            f"tensor_parallel_size {build.tensor_parallel_size} has a part; choose another method, "
            "or leave tensor_parallel_size out"
        )
    if layers and not backend_named(build.backend).runs_ops:
        raise ConfigError(
            f"method {speculative.method!r} reads the target's K/V of layers "
            f"{', '.join(map(str, layers))} in blocks by an op, and graphs of backend "
            f"{build.backend!r} call none; choose another, such as the default one"
        )


def refuse_draft_states(decoder: ModelConfig, speculative: TreeDecodingConfig) -> None:
    """ConfigError for a draft whose layers keep states: a rollout has no place for them."""
    if keeps_states(decoder):
        raise ConfigError(
            f"method {speculative.method!r} drafts with {decoder.architecture}, whose layers keep "
            "states: in this version those of targets are kept alone; choose another draft"
        )
