"""ModelEngine: one compiled model with its KV cache tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.engine.session import Session
from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.packing import RowGroup, pack
from trtspec.models.causal_lm import new_kv_caches
from trtspec.ops.kv_compact import kv_compact


class ModelEngine(CountedEngine):
    """Runs a target or a draft: packs rows, owns the cache tensors, counts and times its calls."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        layout: CacheLayout,
        num_blocks: int,
        session: Session,
        rollout: Session | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.vocab_size = config.vocab_size
        self._session = session
        self._rollout = rollout
        self._k, self._v = new_kv_caches(config, num_blocks, layout.tokens_per_block, dtype)

    def forward(self, groups: Sequence[RowGroup]) -> tuple[Tensor, Tensor | None]:
        """Feed rows, write their K/V.

        Returns the float32 logits ``[R, V]`` of the wanted rows and, from a target that was built
        to capture hidden states, those of all rows ``[T, n*H]``.
        """
        rows, logits_rows = pack(groups, self.layout)
        # A compiled engine wants at least one logits row; the middle of a prefill wants none.
        asked = logits_rows if len(logits_rows) else torch.zeros(1, dtype=torch.int64)
        logits, *hidden = self._run(self._session, [*rows, asked])
        return logits[: len(logits_rows)], hidden[0] if hidden else None

    def feed(self, groups: Sequence[RowGroup], hidden: Tensor) -> None:
        """Write the K/V of rows of a network that reads the target's states ``hidden [T, n*H]``."""
        rows, _ = pack(groups, self.layout)
        self._run(self._session, [*rows, hidden])

    def rollout(
        self,
        groups: Sequence[RowGroup],
        sampling: Sequence[Tensor],
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Feed accepted rows and draft behind each request's last one, in one call.

        ``sampling`` holds the columns of `SamplingColumns`, a value a request; ``hidden [T, n*H]``
        the target's states of the rows, for a network that reads them. Returns ``tokens``,
        ``parents`` and ``scores``, each ``[B, N-1]``.
        """
        if self._rollout is None:
            raise RuntimeError("this engine was loaded without a rollout")
        rows, last_rows = pack(groups, self.layout)
        states = [] if hidden is None else [hidden]
        tokens, parents, scores = self._run(self._rollout, [*rows, last_rows, *sampling, *states])
        return tokens, parents, scores

    def compact(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Move K/V rows of every layer from ``src_slots`` to ``dst_slots`` (int64)."""
        kv_compact(self._k, self._v, src_slots, dst_slots)

    def _run(self, session: Session, inputs: list[Tensor]) -> list[Tensor]:
        return self._call(session, [*inputs, *self._k, *self._v])
