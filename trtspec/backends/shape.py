"""EngineShape: what a backend needs to know about an engine, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trtspec.backends.parts import OpenParts, Part
from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.models.signature import Signature

TARGET = "target"
"""The folder of the target in an engine folder."""
WEIGHTS_NAME = "weights.safetensors"
"""The weight file in the folder of each network."""

BORROWED = "target."
LEVELS = "levels."
"""Parts of the names of constants that a draft's module does not own: `BORROWED`, anywhere in a
name, marks a tensor of the target; the prefix `LEVELS` marks an index tensor of a static tree."""


def as_it_is(module: nn.Module) -> nn.Module:
    """The network itself, for a graph without a module of its own."""
    return module


@dataclass(frozen=True)
class Graph:
    """One graph of an engine.

    name: of the graph in its network. folder: of the network. file: its artifact, relative to the
    engine folder. network: makes the network with uninitialised weights, on torch's default device.
    over: makes the graph's module from such a network. sign: makes example inputs. passes: how
    often a call passes over the weights. facts: what its code depends on besides the networks and
    the numbers that concern all graphs, as plain values. inputs, outputs: names in flat order, for
    a lowered graph. The last ``num_caches`` of each are the same caches, before and after the call.
    """

    name: str
    folder: str
    file: str
    network: Callable[[], nn.Module]
    sign: Callable[[], Signature]
    over: Callable[[nn.Module], nn.Module] = as_it_is
    passes: int = 1
    facts: tuple[Any, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    num_caches: int = 0

    def make(self) -> nn.Module:
        """The module to compile, its weights uninitialised."""
        return self.over(self.network())

    @property
    def signature(self) -> Signature:
        return self.sign()


@dataclass(frozen=True)
class NetworkShape:
    """The target, or a draft.

    folder: where its files are; graphs over slots are named after it. decoder: None for a network
    without K/V. graphs: over paged caches, each run by a session. make: see `Graph.network`. parts:
    what the network is split into over slots. stand_in: makes the module that runs these parts in
    place of the network; for a target the backend has one.
    """

    folder: str
    decoder: ModelConfig | None
    make: Callable[[], nn.Module]
    graphs: tuple[Graph, ...]
    parts: tuple[Part, ...]
    stand_in: Callable[[OpenParts], nn.Module] | None = None

    @property
    def is_target(self) -> bool:
        return self.folder == TARGET

    @property
    def weights(self) -> str:
        """The file of its weights, relative to the engine folder."""
        return f"{self.folder}/{WEIGHTS_NAME}"


@dataclass(frozen=True)
class EngineShape:
    """An engine. rows: most rows after a request's committed tokens in a call. verify_rows: rows of
    a typical verification. lookahead: most tokens after a row that a draft's row depends on.
    capture_layers: the hidden states that the target outputs. options: the backend's, as plain
    values. The limits are those of `BuildConfig`."""

    dtype_name: str
    device: str
    layout: CacheLayout
    rows: int
    verify_rows: int
    lookahead: int
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    capture_layers: tuple[int, ...]
    target: NetworkShape
    drafts: tuple[NetworkShape, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def networks(self) -> tuple[NetworkShape, ...]:
        """The target, then the drafts."""
        return self.target, *self.drafts

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which its models compute."""
        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype
