"""LogitBias: the option logit_bias as a processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trtspec.executor.logits.logits_mask import LogitsMask
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.ops.tree import TokenTree


class LogitBias(LogitsProcessor):
    """Adds numbers to the logits of some tokens, in every row."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        ids = torch.tensor(list(biases), dtype=torch.int64)
        values = torch.tensor(list(biases.values()), dtype=torch.float32)
        self._mask = LogitsMask(biases=(ids, values))

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def mask(self, tree: TokenTree) -> LogitsMask:
        return self._mask
