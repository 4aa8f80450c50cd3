"""DraftKind: one kind of draft network, and its graphs in an engine folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trtspec.backends.parts import OpenParts, Part
from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.config.quantised import Weights
from trtspec.config.tree import TreeShape
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.layer_facts import Read
from trtspec.models.signature import Signature
from trtspec.speculative.tree_levels import make_levels

DRAFT_MODEL = "model.pt2"
DRAFT_STEP = "step.pt2"
DRAFT_ROLLOUT = "rollout.pt2"
DRAFT_PASS = "pass.pt2"


@dataclass(frozen=True)
class DraftGraph:
    """A graph of a draft: how its module is made from a network, its inputs, and how often a call
    passes over the weights."""

    over: Callable[[Any], nn.Module]
    sign: Callable[[], Signature]
    passes: int = 1


@dataclass(frozen=True)
class Built:
    """What the graphs of a draft depend on besides its own shape."""

    dtype: torch.dtype
    layout: CacheLayout
    tree: TreeShape


@dataclass(frozen=True)
class PlainRollout:
    """How a runtime without Python rolls a network out, as plain data: pass by pass, except for
    these fields.

    mask_token: the id of the rows by which one pass guesses all depths. num_modules: networks in
    sequence, each of which guesses one depth; 0: a single one guesses all.
    """

    mask_token: int | None = None
    num_modules: int = 0


def _lookahead(config: Any) -> int:
    """A row computed from the target's hidden state also reads the token after it."""
    return 1 if config.capture_layers else 0


@dataclass(frozen=True)
class DraftKind:
    """One kind of draft network.

    config: the class of its shape, a `DraftConfig` with ``from_dict``. home: the module that makes
    its graphs: the keys of compiled ones cover it and all that it imports. module: the network with
    uninitialised weights, from its config, its target's, a dtype and how weights lie. matrices: of
    its config, the outputs and inputs of each linear layer that a pass reads. load: fills them,
    from its checkpoint (config and tensors by internal names) and the target's tensors. graphs: by
    artifact, relative to the draft's folder, how it is made of config and build. `DRAFT_ROLLOUT`
    drafts and is always there. Accepted rows are fed to a network with a cache of its own by
    `DRAFT_STEP`, a rollout of one step, or by `DRAFT_MODEL`, which does nothing else. one_pass: of
    a network whose rollout may be a loop of calls, `DRAFT_PASS`, which takes the place of its
    graphs where `Backend.drafts_by_pass` says so. parts: what the network is cut into over slot
    caches, from its config and the width of the target's states that it reads; stand_in: what runs
    these in place of the network. slots: rows that a rollout, of that config and tree, writes into
    the cache behind the accepted ones. lookahead: how many tokens after its position a row of its
    cache depends on. target_layers: of a network without K/V, the target's layers whose caches its
    rollout reads in blocks, in the order in which it takes them. levels: how its rollout grows a
    tree, of which the index tensors are constants beside the weights. reads_roots: whether the
    rollout of a network without K/V is given the root beside the target's state before it. plain:
    how it is rolled out without Python; None: it never is.
    """

    config: type[Any]
    home: str
    module: Callable[[Any, ModelConfig, torch.dtype, NetworkFormats], nn.Module]
    matrices: Callable[[Any], Sequence[Read]]
    load: Callable[[Any, Any, Weights], None]
    graphs: Mapping[str, Callable[[Any, Built], DraftGraph]]
    parts: Callable[[Any, int], tuple[Part, ...]]
    stand_in: Callable[[Any, OpenParts], nn.Module]
    slots: Callable[[Any, TreeShape], int] = lambda config, tree: tree.num_rollout_rows
    lookahead: Callable[[Any], int] = _lookahead
    target_layers: Callable[[Any], tuple[int, ...]] = lambda config: ()
    levels: Callable[[TreeShape], nn.Module] = make_levels
    reads_roots: bool = False
    plain: Callable[[Any], PlainRollout | None] = lambda config: None
    one_pass: Callable[[Any, Built], DraftGraph] | None = None

    def graphs_for(
        self, by_pass: bool, num_steps: int
    ) -> Mapping[str, Callable[[Any, Built], DraftGraph]]:
        """The graphs that a draft with that many steps runs. ``by_pass``: if possible, it is rolled
        out by calls of one pass each. A rollout of one step is its own `DRAFT_STEP`."""
        if by_pass and self.one_pass is not None:
            return {DRAFT_PASS: self.one_pass}
        return {k: v for k, v in self.graphs.items() if num_steps > 1 or k != DRAFT_STEP}
