"""The graphs of an EAGLE network."""

from __future__ import annotations

import torch

from trtspec.config.model import ModelConfig
from trtspec.formats.network_formats import NetworkFormats
from trtspec.speculative.draft_kind import DraftKind
from trtspec.speculative.eagle.network import EagleDraft
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.pass_graphs import TREE_GRAPHS, feature_parts, feature_passes


def make_network(
    config: EagleConfig, target: ModelConfig, dtype: torch.dtype, formats: NetworkFormats
) -> EagleDraft:
    """The network of such a shape, its weights uninitialised."""
    return EagleDraft(config, target, dtype, formats=formats)


EAGLE_NETWORK = DraftKind(
    EagleConfig,
    __name__,
    make_network,
    EagleDraft.matrices,
    EagleDraft.load_weights,
    TREE_GRAPHS,
    feature_parts,
    feature_passes,
)
