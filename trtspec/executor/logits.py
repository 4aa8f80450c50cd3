"""Penalties, biases and bans of one request, applied to its logits before sampling.

Each row of a verify step is treated with its own text: prompt, output so far, and the draft tokens
on the row's path. So a row gets the bits that the same text would get without speculation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trtspec.config.sampling import SamplingParams
from trtspec.ops.tree import TokenTree


def needs_logits_processing(params: SamplingParams) -> bool:
    """Whether any option asks for more than temperature and filters; False costs nothing."""
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.logit_bias
        or params.banned_sequences
        or params.min_tokens > 0
    )


class LogitsState:
    """Counts over one request's text, extended token by token, and what they do to its logits.

    In order: logit_bias is added; repetition_penalty divides positive and multiplies negative
    logits of tokens in prompt or output; frequency_penalty (per occurrence) and presence_penalty
    (once) are subtracted from tokens in the output; then -inf for tokens that would complete a bad
    word, wherever in prompt and output it began, and for end tokens before `min_tokens`.
    """

    def __init__(
        self, params: SamplingParams, num_prompt_tokens: int, eos_token_ids: Sequence[int] = ()
    ) -> None:
        """`eos_token_ids` are those that `min_tokens` holds back, beside params.stop_token_ids."""
        self._params = params
        self._num_prompt_tokens = num_prompt_tokens
        self._length = 0
        self._penalises_prompt = params.repetition_penalty != 1.0
        self._penalises = bool(
            self._penalises_prompt or params.presence_penalty or params.frequency_penalty
        )
        # Distinct tokens that a penalty concerns, and how often each is in the OUTPUT.
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.empty(64, dtype=np.float32)

        biases = params.token_biases
        self._bias_ids = torch.tensor(list(biases), dtype=torch.int64)
        self._bias_values = torch.tensor(list(biases.values()), dtype=torch.float32)

        banned = params.banned_sequences
        self._banned_always = sorted({word[0] for word in banned if len(word) == 1})
        # Longer words by the last token before the banned one, so that a row looks at few.
        self._banned_after: dict[int, list[tuple[int, ...]]] = {}
        for word in banned:
            if len(word) > 1:
                self._banned_after.setdefault(word[-2], []).append(word)
        self._tail_length = max((len(word) - 1 for word in banned), default=0)
        self._tail: list[int] = []

        ends = () if params.ignore_eos else eos_token_ids
        self._end_ids = sorted({*ends, *params.stop_token_ids})

    def extend_to(self, tokens: Sequence[int]) -> None:
        """Take in the request's text, prompt and output; only what is new since the last call is
        looked at (tokens are only ever appended)."""
        for token in tokens[self._length :]:
            is_output = self._length >= self._num_prompt_tokens
            if self._penalises and (is_output or self._penalises_prompt):
                slot = self._slot(token)  # may replace the arrays
                self._counts[slot] += is_output
            self._length += 1
        if self._tail_length:
            self._tail = list(tokens[-self._tail_length :])

    def apply(self, logits: Tensor, tree: TokenTree) -> None:
        """Change float32 `logits` [n+1, V] in place: row 0 follows the text given to `extend_to`,
        row i + 1 follows it and the path of node i of `tree`."""
        if len(self._bias_ids):
            ids = self._bias_ids.to(logits.device)
            logits[:, ids] = logits[:, ids] + self._bias_values.to(logits.device)
        if self._penalises:
            self._apply_penalties(logits, tree)
        self._ban(logits, tree)

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
            self._ids[slot], self._counts[slot] = token, 0.0
        return slot

    def _apply_penalties(self, logits: Tensor, tree: TokenTree) -> None:
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

    def _penalised(self, logits: Tensor, counts: Tensor) -> Tensor:
        """New logits of seen tokens; `counts` of their occurrences in the output."""
        params = self._params
        if self._penalises_prompt:
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

    def _ban(self, logits: Tensor, tree: TokenTree) -> None:
        if self._banned_always:
            logits[:, self._banned_always] = -torch.inf
        outputs = self._length - self._num_prompt_tokens
        early = [outputs] if not len(tree) else [outputs, *(tree.depths + outputs).tolist()]
        for row, position in enumerate(early):
            if self._end_ids and position < self._params.min_tokens:
                logits[row, self._end_ids] = -torch.inf
            if not self._banned_after:
                continue
            text = self._tail if row == 0 else [*self._tail, *tree.path_tokens(row - 1)]
            for word in self._banned_after.get(text[-1], ()) if text else ():
                if tuple(text[1 - len(word) :]) == word[:-1]:
                    logits[row, word[-1]] = -torch.inf
