"""The weight formats of an engine's networks."""

from __future__ import annotations

from dataclasses import replace

from trtspec.backends.registry import backend_named
from trtspec.config.build_config import BuildConfig
from trtspec.config.draft_weights import DraftWeights
from trtspec.config.model import ModelConfig
from trtspec.config.storage import NetworkStorage
from trtspec.formats.choose import formats_of
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.causal_lm import EMBEDDING, head_weight


def target_formats(
    target: ModelConfig, build: BuildConfig, rounds_head: bool = False
) -> NetworkFormats:
    """How the target of a resolved build keeps its weights; ``rounds_head``: see `formats_of`."""
    own = network_formats(build, target.storage, rounds_head)
    return replace(
        own,
        target_head=own.of_head(head_weight(target)),
        target_embedding=own.of_embedding(EMBEDDING),
    )


def draft_formats(
    storage: NetworkStorage | None,
    target: ModelConfig,
    build: BuildConfig,
    weights: DraftWeights | None = None,
) -> NetworkFormats:
    """How a draft keeps its weights: as ``weights`` says, or as its target does; those stay as they
    are that ``storage`` names."""
    own = network_formats(build if weights is None else weights.within(build), storage, True)
    of_target = target_formats(target, build, rounds_head=True)
    return replace(
        own, target_head=of_target.target_head, target_embedding=of_target.target_embedding
    )


def network_formats(
    build: BuildConfig, storage: NetworkStorage | None, rounds_head: bool = False
) -> NetworkFormats:
    """How a network of a resolved build keeps its weights. The ops for CPUs read floats in panels;
    other libraries want plain floats."""
    runs_ops = backend_named(build.backend).runs_ops
    return formats_of(build, build.device == "cpu" and runs_ops, storage, rounds_head)
