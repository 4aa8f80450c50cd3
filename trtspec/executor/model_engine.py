"""ModelEngine: one compiled model with its KV cache tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.config.model import ModelConfig
from trtspec.engine.folder import CacheLayout
from trtspec.engine.session import Session
from trtspec.executor.packing import RowGroup, pack
from trtspec.models.causal_lm import new_kv_caches
from trtspec.ops.kv_compact import kv_compact


class ModelEngine:
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
        self.layout = layout
        self.vocab_size = config.vocab_size
        self.num_calls = 0
        self.seconds = 0.0
        self._session = session
        self._rollout = rollout
        self._k, self._v = new_kv_caches(config, num_blocks, layout.tokens_per_block, dtype)

    def forward(self, groups: Sequence[RowGroup]) -> Tensor:
        """Feed rows, write their K/V; return float32 logits ``[R, V]`` of the wanted rows."""
        rows, logits_rows = pack(groups, self.layout)
        # A compiled engine wants at least one logits row; the middle of a prefill wants none.
        asked = logits_rows if len(logits_rows) else torch.zeros(1, dtype=torch.int64)
        (logits,) = self._run(self._session, [*rows, asked])
        return logits[: len(logits_rows)]

    def rollout(
        self, groups: Sequence[RowGroup], sampling: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Feed accepted rows and draft behind each request's last one, in one call.

        ``sampling`` holds the eight per-request tensors of `TreeRollout.forward`. Returns
        ``tokens``, ``parents`` and ``scores``, each ``[B, N-1]``.
        """
        if self._rollout is None:
            raise RuntimeError("this engine was loaded without a rollout")
        rows, last_rows = pack(groups, self.layout)
        tokens, parents, scores = self._run(self._rollout, [*rows, last_rows, *sampling])
        return tokens, parents, scores

    def compact(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Move K/V rows of every layer from ``src_slots`` to ``dst_slots`` (int64)."""
        kv_compact(self._k, self._v, src_slots, dst_slots)

    def _run(self, session: Session, inputs: list[Tensor]) -> list[Tensor]:
        began = time.perf_counter()
        outputs = session.run([*inputs, *self._k, *self._v])
        self.seconds += time.perf_counter() - began
        self.num_calls += 1
        return outputs
