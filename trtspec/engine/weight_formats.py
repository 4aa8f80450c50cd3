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


def target_formats(target: ModelConfig, build: BuildConfig) -> NetworkFormats:
    """How the target of a resolved build keeps its weights."""
    own = network_formats(build, target.storage)
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
    """How a draft keeps its weights: as ``weights`` says, otherwise like its target; those named by
    ``storage`` stay as they are."""
    own = network_formats(build if weights is None else weights.within(build), storage)
    of_target = target_formats(target, build)
    return replace(
        own, target_head=of_target.target_head, target_embedding=of_target.target_embedding
    )


def network_formats(build: BuildConfig, storage: NetworkStorage | None) -> NetworkFormats:
    """How a network of a resolved build keeps its weights. The CPU ops read floats in panels; other
    libraries need plain floats."""
    runs_ops = backend_named(build.backend).runs_ops
    return formats_of(build, build.device == "cpu" and runs_ops, storage)
