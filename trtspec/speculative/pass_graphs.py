"""Graphs of drafts that are rolled out pass by pass, and the parts that they are split into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtspec.backends.parts import OpenParts, Part, PartRole, RowMethod, mask_kinds
from trtspec.backends.session import GraphSession
from trtspec.backends.shape import as_it_is
from trtspec.config.model import ModelConfig
from trtspec.config.state_reader import StateReader
from trtspec.config.tree import TreeShape
from trtspec.models.causal_lm import TOKEN_MAP
from trtspec.models.signature import feature_signature, pass_signature, rollout_signature
from trtspec.speculative.draft_kind import DRAFT_ROLLOUT, DRAFT_STEP, Built, DraftGraph
from trtspec.speculative.draft_pass import DraftPass
from trtspec.speculative.pass_network import PassNetwork
from trtspec.speculative.tree_rollout import TreeRollout

PASS, HEAD, FUSE = "pass", "head", "fuse"
"""The names of parts, except those of several modules; the last two are methods of the network."""


def states_width(config: ModelConfig | StateReader) -> int:
    """Width of the hidden states that a row reads; 0 for a network that reads only tokens."""
    return config.hidden_in if isinstance(config, StateReader) else 0


def _rollout(config: ModelConfig | StateReader, built: Built, tree: TreeShape) -> DraftGraph:
    decoder, width = config.decoder, states_width(config)
    return DraftGraph(
        lambda module: TreeRollout(module, tree, built.layout.tokens_per_block),
        lambda: rollout_signature(decoder, built.dtype, built.layout, width),
        passes=tree.num_steps,
    )


def first_step(config: ModelConfig | StateReader, built: Built) -> DraftGraph:
    """A one-step rollout, which feeds accepted rows as well."""
    return _rollout(config, built, built.tree.first_step)


def _all_steps(config: ModelConfig | StateReader, built: Built) -> DraftGraph:
    return _rollout(config, built, built.tree)


TREE_GRAPHS: dict[str, Callable[[Any, Built], DraftGraph]] = {
    DRAFT_STEP: first_step,
    DRAFT_ROLLOUT: _all_steps,
}
"""Graphs of a network that expands a tree pass by pass."""


def one_pass(config: ModelConfig, built: Built) -> DraftGraph:
    """One pass of a rollout, for a network that reads only tokens."""
    return DraftGraph(
        lambda module: DraftPass(module, built.tree.topk),
        lambda: pass_signature(config.decoder, built.dtype, built.layout),
    )


def feature_model(config: Any, built: Built) -> DraftGraph:
    """The network as it is, feeding accepted rows with the target's hidden states."""
    width = config.hidden_in
    return DraftGraph(
        as_it_is, lambda: feature_signature(config.decoder, built.dtype, built.layout, width)
    )


def head_part(decoder: ModelConfig, name: str = HEAD, module: str = "") -> Part:
    """The head after the passes of a network, or of a module in it."""
    method = RowMethod(HEAD, decoder.hidden_size, "ready", "logits")
    return Part(PartRole.METHOD, name, None, module, method=method)


def token_parts(config: ModelConfig, states: int) -> tuple[Part, ...]:
    """Parts of a network that reads only tokens."""
    decoder = config.decoder
    return (
        Part(PartRole.PASS, PASS, decoder, masks=mask_kinds(decoder)),
        head_part(decoder),
    )


def feature_parts(config: StateReader, states: int) -> tuple[Part, ...]:
    """Parts of a network whose passes read features, made from the target's hidden states."""
    decoder, masks = config.decoder, mask_kinds(config.decoder)
    fuse = RowMethod(FUSE, states, "hidden_in", "features")
    return (
        Part(PartRole.METHOD, FUSE, None, method=fuse),
        Part(PartRole.PASS, PASS, decoder, masks=masks, reads_features=True),
        head_part(decoder),
    )


def token_passes(config: Any, parts: OpenParts) -> PassNetwork:
    """Runs `token_parts`."""
    return _passes(parts, None)


def feature_passes(config: Any, parts: OpenParts, token_map: str = TOKEN_MAP) -> PassNetwork:
    """Runs `feature_parts`; ``token_map``: the name of the map of a cut head."""
    return _passes(parts, parts.session(FUSE), token_map)


def _passes(parts: OpenParts, fuse: GraphSession | None, map_name: str = TOKEN_MAP) -> PassNetwork:
    rows, head = parts.rows(PASS), parts.session(HEAD)
    token_map, mask_hidden = parts.tensor(map_name), parts.tensor("mask_hidden")
    return PassNetwork(rows, head, token_map, fuse, mask_hidden, parts.max_rows)
