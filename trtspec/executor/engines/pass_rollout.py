"""PassRollout: a draft rolled out by calls of one pass each, until the next one does not pay."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.config.tree import TreeShape
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.ops import native  # noqa: F401  registers the class

ALL_DEPTHS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a rollout ends before its last depth; by default never.

    max_depth: deepest wanted node; a rollout that is a single call only heeds 1, if it can, and no
    other field. pace: tokens per second that the time of a pass could bring otherwise; 0: time does
    not count. gains: see `StepPlan`. p_min: least probability of a node given its parent, by the
    draft; less likely nodes are dropped.
    """

    max_depth: int = ALL_DEPTHS
    pace: float = 0.0
    gains: Tensor | None = None
    p_min: float = 0.0


class PassRollout:
    """The loop is in C++ (``cpp/include/trtspec/runtime/pass_rollout.hpp``), which calls compiled
    packages itself; any other session is called from here.

    rule: for the next rollout. num_passes: of the last one.
    """

    def __init__(
        self,
        session: Session,
        tree: TreeShape,
        tokens_per_block: int,
        caches: KVTensors | None = None,
    ) -> None:
        """``session``: of a `DraftPass`. ``caches``: those of its network, if it keeps states, of
        which the last ones are those of its passes (cpp/include/trtspec/beam_states.hpp)."""
        self.session = session
        self.num_steps = tree.num_steps
        self.rule = StopRule()
        self.num_passes = 0
        self._caches = caches if caches is not None and caches.keeps_states else None
        states = [] if self._caches is None else self._caches.state_places
        package = getattr(session, "package", None)
        choices = [list(path) for path in tree.choices or ()]
        sizes = tree.topk, tree.num_steps, tree.num_draft_tokens
        self._loop: Any = torch.classes.trtspec.PassRollout(
            *sizes, choices, tokens_per_block, states, package
        )
        self._whole = None if package is None else self._loop.run

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        """Inputs of a whole rollout; returns what `TreeRollout.forward` returns, with fewer nodes
        if it stopped early."""
        rule = self.rule
        stop = rule.max_depth, rule.pace, rule.gains, rule.p_min
        given = inputs._replace(caches=()).flat()
        if self._whole is not None:
            trees, self.num_passes = self._whole(given, list(inputs.caches), *stop)
        else:
            count = 0 if self._caches is None else self._caches.num_states
            self._call_passes(self._loop.begin(given, count, *stop), inputs)
            trees, self.num_passes = self._loop.trees()
        found: list[Tensor] = trees
        return found

    def _call_passes(self, given: list[Tensor], inputs: EngineInputs) -> None:
        while given:
            began = time.perf_counter()
            ids, gains = self.session.run(inputs.filled([*given, *inputs.caches]))
            given = self._loop.next(ids, gains, time.perf_counter() - began)
            if self._caches is not None:
                source, wanted = self._loop.copies()
                if source:
                    self._caches.copy_states(torch.tensor(source), torch.tensor(wanted))
