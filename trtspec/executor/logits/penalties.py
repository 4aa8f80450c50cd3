"""Penalties: lower the logits of tokens that already occur in the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trtspec.config.sampling import SamplingParams
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.ops.tree import TokenTree


class Penalties(LogitsProcessor):
    """Penalties by the counts of tokens in the text and on a row's path.

    In order: repetition_penalty divides positive and multiplies negative logits of tokens in prompt
    or output; frequency_penalty (per occurrence) and presence_penalty (once) are subtracted from
    tokens in the output. All of this needs the logits: the first depends on their signs, and each
    subtraction rounds.
    """

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._params = params
        self._num_prompt_tokens = num_prompt_tokens
        self._length = 0
        self._counts_prompt = params.repetition_penalty != 1.0
        # Distinct tokens that a penalty concerns, and how often each is in the OUTPUT.
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.empty(64, dtype=np.float32)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            is_output = self._length >= self._num_prompt_tokens
            if is_output or self._counts_prompt:
                slot = self._slot(token)  # may replace the arrays
                self._counts[slot] += is_output
            self._length += 1

    def apply(self, logits: Tensor, tree: TokenTree) -> None:
        rows, ids, counts = self._path_counts(tree)
        device = logits.device
        path_rows = torch.tensor(rows, dtype=torch.int64, device=device)
        path_ids = torch.tensor(ids, dtype=torch.int64, device=device)
        path_counts = torch.tensor(counts, dtype=torch.float32, device=device)
        # The tokens on a row's path are redone from the untouched logit with the row's own count.
        on_path = self._penalised(logits[path_rows, path_ids], path_counts)
        size = len(self._slots)
        if size:
            seen = torch.from_numpy(self._ids[:size]).to(device)
            output_counts = torch.from_numpy(self._counts[:size]).to(device)
            logits[:, seen] = self._penalised(logits[:, seen], output_counts)
        logits[path_rows, path_ids] = on_path

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
            self._ids[slot], self._counts[slot] = token, 0.0
        return slot

    def _penalised(self, logits: Tensor, counts: Tensor) -> Tensor:
        """New logits of tokens in the text; `counts`: their occurrences in the output."""
        params = self._params
        if self._counts_prompt:
            penalty = torch.tensor(params.repetition_penalty, dtype=torch.float32)
            logits = torch.where(logits > 0, logits / penalty, logits * penalty)
        if params.frequency_penalty:
            logits = logits - counts * params.frequency_penalty
        if params.presence_penalty:
            logits = logits - (counts > 0) * params.presence_penalty
        return logits

    def _path_counts(self, tree: TokenTree) -> tuple[list[int], list[int], list[float]]:
        """Row, token and count in text and path, for every distinct token on each node's path."""
        by_node: list[dict[int, float]] = []
        rows: list[int] = []
        ids: list[int] = []
        counts: list[float] = []
        pairs = zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)
        for row, (token, parent) in enumerate(pairs, start=1):
            own = dict(by_node[parent]) if parent >= 0 else {}
            if token not in own:
                slot = self._slots.get(token)
                own[token] = float(self._counts[slot]) if slot is not None else 0.0
            own[token] += 1.0
            by_node.append(own)
            rows += [row] * len(own)
            ids += own.keys()
            counts += own.values()
        return rows, ids, counts
