"""Engines with room for low-rank adapters: where they run, what that room takes, and adapters that
fit there."""

from __future__ import annotations

from pathlib import Path

import torch

from checkpoint_converters import read_adapter
from trtspec.backends.registry import backend_named
from trtspec.config.build_config import LORA_RANK_STEP, BuildConfig
from trtspec.config.model import ModelConfig
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import built_dtype
from trtspec.errors import CheckpointError, ConfigError, RequestError
from trtspec.models.adapters import Adapter, adapter_bytes
from trtspec.models.block_map import without_adapters


def require_adapters(target: ModelConfig, build: BuildConfig) -> None:
    """ConfigError where adapters are asked for and nothing runs them: beside parts of layers that
    have none, in graphs without ops, or over ranks."""
    if build.adapters is None:
        return
    bare, remedy = without_adapters(target), "leave enable_lora out, or merge the adapter"
    if bare:
        raise ConfigError(
            f"enable_lora: {target.architecture} has {' and '.join(bare)}, beside which this "
            f"version runs no adapters; {remedy}"
        )
    if not backend_named(build.backend).runs_ops:
        raise ConfigError(
            f"enable_lora: adapters are an op, and graphs of backend {build.backend!r} call none; "
            f"choose another, such as the default one, or {remedy}"
        )
    if build.tensor_parallel_size > 1:
        raise ConfigError(
            f"enable_lora: in this version no target has adapters that is split over ranks "
            f"(tensor_parallel_size {build.tensor_parallel_size}); leave one of the two out"
        )


def all_adapters_bytes(target: ModelConfig, build: BuildConfig) -> int:
    """Bytes of the room for all adapters of a resolved build."""
    sizes = build.adapters
    if sizes is None:
        return 0
    return sizes.number * adapter_bytes(target, sizes.rank, getattr(torch, build.dtype))


def load_adapter(name: str, number: int, folder: Path, engine: EngineConfig) -> Adapter:
    """Read an adapter for an engine; ``name``, ``number``: see `Adapter`.

    Raises:
        RequestError: the engine has no room for adapters, or this is of a higher rank than there is
            room for.
        CheckpointError: see `read_adapter`; or values that the engine's dtype cannot hold.
    """
    sizes, dtype = engine.build.adapters, built_dtype(engine)
    if sizes is None:
        raise RequestError(
            f"the adapter {name!r} needs an engine that is built for adapters; give "
            "enable_lora=True (trtspec-build --enable_lora)"
        )
    found = read_adapter(folder, engine.target)
    if found.rank > sizes.rank:
        needed = -(-found.rank // LORA_RANK_STEP) * LORA_RANK_STEP
        raise RequestError(
            f"the adapter in {folder} has rank {found.rank}, the engine has room for {sizes.rank}; "
            f"build it with max_lora_rank={needed}"
        )
    layers = {layer: (a.to(dtype), b.to(dtype)) for layer, (a, b) in found.layers.items()}
    for layer, pair in layers.items():
        if not all(bool(tensor.isfinite().all()) for tensor in pair):
            raise CheckpointError(
                f"the adapter in {folder} has values at {layer} beyond those of "
                f"{engine.build.dtype}; build the engine with another dtype"
            )
    return Adapter(number, name, layers)
