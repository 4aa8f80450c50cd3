"""The kinds of draft networks: config, module, and the graphs that an engine folder holds of each.

A new kind of network is a class of `trtspec.config` that fits `DraftConfig`, a module of
`trtspec.models`, and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.config.draft import DraftConfig
from trtspec.config.eagle import EagleConfig
from trtspec.config.kv import CacheLayout
from trtspec.config.medusa import MedusaConfig
from trtspec.config.model import ModelConfig
from trtspec.config.mtp import MtpConfig
from trtspec.config.tree import TreeShape
from trtspec.models.causal_lm import CausalLM
from trtspec.models.eagle import EagleDraft
from trtspec.models.heads_rollout import HeadsRollout
from trtspec.models.medusa import MedusaHeads
from trtspec.models.rollout import TreeRollout
from trtspec.models.signature import (
    Signature,
    feature_signature,
    heads_signature,
    model_signature,
    rollout_signature,
)

DRAFT_MODEL = "draft/model.pt2"
DRAFT_ROLLOUT = "draft/rollout.pt2"


@dataclass(frozen=True)
class Graph:
    """A module, ready to be compiled or run, and its inputs."""

    module: nn.Module
    signature: Signature


@dataclass(frozen=True)
class Built:
    """What the graphs of a draft depend on beside its own shape."""

    dtype: torch.dtype
    layout: CacheLayout
    tree: TreeShape


@dataclass(frozen=True)
class DraftKind:
    """One kind of draft network.

    config: the class of its shape, a `DraftConfig` with ``from_dict``. module: the network with
    uninitialised weights, from its config, its target's, a dtype and whether weights are packed.
    load: fills them, from its checkpoint (config and tensors by internal names) and the target's
    tensors. graphs: by artifact, relative to the engine folder, how it is made of config, module
    and build. `DRAFT_ROLLOUT` drafts and is always there; `DRAFT_MODEL` feeds accepted rows to a
    network with a cache of its own.
    """

    config: type[Any]
    module: Callable[[Any, ModelConfig, torch.dtype, bool], nn.Module]
    load: Callable[[Any, Any, Mapping[str, Tensor]], None]
    graphs: Mapping[str, Callable[[Any, Any, Built], Graph]]


def _tree_rollout(decoder: ModelConfig, module: Any, built: Built, width: int) -> Graph:
    rollout = TreeRollout(module, built.tree, built.layout.tokens_per_block)
    return Graph(rollout, rollout_signature(decoder, built.dtype, built.layout, width))


def _language_model(config: ModelConfig, module: CausalLM, built: Built) -> Graph:
    return Graph(module, model_signature(config, built.dtype, built.layout))


def _language_rollout(config: ModelConfig, module: CausalLM, built: Built) -> Graph:
    return _tree_rollout(config, module, built, 0)


def _feature_model(config: EagleConfig, module: EagleDraft, built: Built) -> Graph:
    signature = feature_signature(config.decoder, built.dtype, built.layout, config.hidden_in)
    return Graph(module, signature)


def _feature_rollout(config: EagleConfig, module: EagleDraft, built: Built) -> Graph:
    return _tree_rollout(config.decoder, module, built, config.hidden_in)


def _heads_rollout(config: MedusaConfig, module: MedusaHeads, built: Built) -> Graph:
    rollout = HeadsRollout(module, built.tree)
    return Graph(rollout, heads_signature(built.dtype, config.hidden_size))


def _feature_network(
    config: EagleConfig, target: ModelConfig, dtype: torch.dtype, packed: bool
) -> EagleDraft:
    return EagleDraft(config, target, dtype, packed=packed)


def _heads(
    config: MedusaConfig, target: ModelConfig, dtype: torch.dtype, packed: bool
) -> MedusaHeads:
    return MedusaHeads(config, target, dtype, packed=packed)


DRAFT_KINDS: Mapping[str, DraftKind] = {
    ModelConfig.kind: DraftKind(
        ModelConfig,
        lambda config, target, dtype, packed: CausalLM(config, dtype, packed=packed),
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_MODEL: _language_model, DRAFT_ROLLOUT: _language_rollout},
    ),
    EagleConfig.kind: DraftKind(
        EagleConfig,
        _feature_network,
        EagleDraft.load_weights,
        {DRAFT_MODEL: _feature_model, DRAFT_ROLLOUT: _feature_rollout},
    ),
    MtpConfig.kind: DraftKind(
        MtpConfig,
        _feature_network,
        EagleDraft.load_weights,
        {DRAFT_MODEL: _feature_model, DRAFT_ROLLOUT: _feature_rollout},
    ),
    MedusaConfig.kind: DraftKind(
        MedusaConfig,
        _heads,
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_ROLLOUT: _heads_rollout},
    ),
}


def draft_to_dict(config: DraftConfig) -> dict[str, Any]:
    """Plain values for JSON, with the kind; `draft_from_dict` takes them back."""
    return {"kind": config.kind, **config.to_dict()}


def draft_from_dict(data: Mapping[str, Any]) -> DraftConfig:
    """The inverse of `draft_to_dict`; KeyError for a kind that is not in `DRAFT_KINDS`, ConfigError
    for fields that do not fit it."""
    fields = dict(data)
    config: DraftConfig = DRAFT_KINDS[fields.pop("kind")].config.from_dict(fields)
    return config
