"""DraftRuntime: a draft of an open engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from trtspec.config.draft import DraftConfig
from trtspec.executor.engines.heads_engine import HeadsEngine
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.schedule.resources import DraftCache


@dataclass(frozen=True)
class DraftRuntime:
    """A draft of an open engine, which its drafter calls.

    folder: its name in the engine folder. network: its shape. engine: with its sessions and
    weights. cache: where the engine keeps K/V; None without K/V. states: the columns of all
    captured hidden states that it reads; None: it reads all, or none. longest: see `EngineDraft`.
    """

    folder: str
    network: DraftConfig
    engine: ModelEngine | HeadsEngine
    cache: DraftCache | None = None
    states: slice | None = None
    longest: int | None = None

    @property
    def cached(self) -> tuple[ModelEngine, DraftCache]:
        """For a network with K/V: its engine and cache."""
        assert self.cache is not None, "the needs of these drafters name a cache"
        return cast(ModelEngine, self.engine), self.cache

    @property
    def over_target(self) -> ModelEngine:
        """For a network that reads the target's K/V: its engine."""
        return cast(ModelEngine, self.engine)

    @property
    def heads(self) -> HeadsEngine:
        """For a network without K/V: its engine."""
        assert self.cache is None, "a network with K/V reads rows"
        return cast(HeadsEngine, self.engine)
