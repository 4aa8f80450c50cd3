"""HeadsEngine: a compiled draft network without K/V."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.backends.staging import to_host
from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.ops.sampling import SamplingColumns


class HeadsEngine(CountedEngine):
    """Drafts from one hidden state of the target for each request and, if the network reads it,
    from the root; it keeps nothing between calls."""

    def __init__(self, rollout: Session, device: str = "cpu", pass_bytes: int = 0) -> None:
        """``pass_bytes``: weights, which a call reads once."""
        super().__init__(torch.device(device))
        self._rollout = rollout
        self._pass_bytes = pass_bytes

    def release(self) -> None:
        del self._rollout

    def rollout(
        self, hidden: Tensor, sampling: Sequence[Tensor], roots: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The trees of B requests, in one call.

        ``hidden [B, n*H]`` holds the target's hidden state of the row before each root,
        ``sampling`` the columns of `SamplingColumns`, ``roots [B] i64`` the roots, for a network
        that reads them; the latter two on the host. Returns ``tokens``, ``parents`` and ``scores``,
        each ``[B, N-1]``, on the host.
        """
        given = EngineInputs(root_ids=roots, columns=SamplingColumns._make(sampling))
        inputs = given.filled(self._staging.to_device(given.flat()))._replace(root_hidden=hidden)
        outputs = self._call(lambda: self._rollout.run(inputs), self._pass_bytes)
        tokens, parents, scores = to_host(outputs)
        return tokens, parents, scores
