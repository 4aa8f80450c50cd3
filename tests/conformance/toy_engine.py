"""ToyEngine: a target, draft model or feature network of integer hashes, the same as
cpp/tests/runtime/toy_engine.hpp.

Every cache slot holds a number made of the row that was written there and of all rows that it saw,
read back through the block tables; so a wrong slot, a stale row, a missing compaction or a wrong
mask changes the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trtspec.backends.inputs import RowInputs
from trtspec.backends.packing import RowBatch, RowGroup, pack
from trtspec.config.kv import CacheLayout
from trtspec.executor.engines.buckets import Bucket
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.engines.timer import CallTimes
from trtspec.ops.sampling import SamplingColumns, draft_candidates

WORD = 2**64 - 1
STATE_WORDS = 4  # floats of a hidden state, 16 bits each
_STEP = 0x9E3779B97F4A7C15
_FACTOR = 0xD6E8FEB86659FD93


def mix(a: int, b: int) -> int:
    """An invertible scramble of the word `a` by the word `b`."""
    x = a ^ (b * _STEP & WORD)
    for _ in range(2):
        x ^= x >> 32
        x = x * _FACTOR & WORD
    return x ^ (x >> 32)


def _mix_all(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    shift = np.uint64(32)
    x = a ^ (b * np.uint64(_STEP))
    for _ in range(2):
        x = (x ^ (x >> shift)) * np.uint64(_FACTOR)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> shift)
    return mixed


class Kind(Enum):
    TARGET = "target"
    DRAFT_MODEL = "draft_model"
    EAGLE = "eagle"


@dataclass(frozen=True)
class Model:
    """vocab: columns of the logits. text_vocab: the target's; a draft's may be smaller. period: the
    favoured tokens repeat after so many positions. regularity: percent of the rows where the
    favoured token stands out. skill: percent of the rows in which a draft says what the target
    says. nan_every: about one row in so many has NaN logits, 0 for none. The rest: of the rollout.
    """

    vocab: int
    text_vocab: int
    salt: int
    period: int
    regularity: int
    skill: int
    nan_every: int
    topk: int = 0
    num_steps: int = 0
    num_nodes: int = 0


class Seen(NamedTuple):
    """What a row comes to: its summary, where the token after it stands, and what decides whether a
    draft is right about it."""

    state: int
    next_position: int
    luck: int


class ToyEngine:
    """Stands in for a `trtspec.executor.engines.model_engine.ModelEngine`."""

    verifies = False
    rolls_first_step = False

    def __init__(
        self,
        kind: Kind,
        model: Model,
        layout: CacheLayout,
        num_blocks: int,
        failing_calls: Sequence[int] = (),
    ) -> None:
        self.layout = layout
        self.vocab_size = model.vocab
        self.num_calls = 0
        self.seconds = 0.0
        self.weight_bytes = self.kv_bytes = self.num_texts_over = 0
        self.bucket_times: dict[Bucket, CallTimes] = {}
        self.before_call: Callable[[], None] = lambda: None
        self._kind = kind
        self._model = model
        self._failing = frozenset(failing_calls)
        self._cache = np.zeros(num_blocks * layout.tokens_per_block, np.uint64)
        phases = np.arange(model.period, dtype=np.uint64)
        salts = np.full(model.period, model.salt, np.uint64)
        self._favoured = (_mix_all(salts, phases) % np.uint64(model.text_vocab)).astype(np.int64)

    def forward(self, packed: RowBatch) -> tuple[Tensor, Tensor | None]:
        rows, logits_rows, *_ = packed
        seen = self._feed(rows, None)
        logits = self.logits([seen[row] for row in logits_rows.tolist()])
        hidden = None
        if self._kind is Kind.TARGET:
            words = [[row.state >> 16 * i & 0xFFFF for i in range(STATE_WORDS)] for row in seen]
            hidden = torch.tensor(words, dtype=torch.float32).reshape(-1, STATE_WORDS)
        self._end_call()
        return logits, hidden

    def feed(self, groups: Sequence[RowGroup], hidden: Tensor | None = None) -> None:
        self._feed(pack(groups, self.layout)[0], hidden)
        self._end_call()

    def rollout(
        self,
        groups: Sequence[RowGroup],
        sampling: Sequence[Tensor],
        hidden: Tensor | None = None,
        rule: StopRule = StopRule(),  # noqa: B008
    ) -> tuple[Tensor, Tensor, Tensor]:
        seen = self._feed(pack(groups, self.layout)[0], hidden)
        trees = []
        last = -1
        for b, group in enumerate(groups):
            last += len(group.tokens)
            trees.append(self._grow(group, seen[last], [column[b : b + 1] for column in sampling]))
        self._end_call()
        tokens, parents, scores = zip(*trees, strict=True)
        return (
            torch.tensor(tokens),
            torch.tensor(parents, dtype=torch.int32),
            torch.from_numpy(np.array(scores, np.float32)),
        )

    def compact(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        self._cache[dst_slots.numpy()] = self._cache[src_slots.numpy()]

    def _end_call(self) -> None:
        self.num_calls += 1
        if self.num_calls - 1 in self._failing:
            raise RuntimeError("a call fails on purpose")

    def _feed_row(
        self, token: int, position: int, state: int, slot: int, visible: Any, own: int
    ) -> Seen:
        """Write one row to `slot` and read it back, with the others that it sees. state: of the row
        before it, for a feature network."""
        salt = self._model.salt
        total = int(self._cache[visible].sum()) if len(visible) else 0
        made = mix(mix(salt ^ token, position), total)
        if self._kind is Kind.EAGLE:
            made = mix(made, state)
        self._cache[slot] = made
        total = total + int(self._cache[own]) & WORD
        if self._kind is not Kind.EAGLE:
            return Seen(total, position + 1, total)
        # The row of the token after position p says what the target's row p + 1 would.
        following = mix(mix(salt ^ token, position + 1), state)
        return Seen(state + following & WORD, position + 2, total)

    def _feed(self, rows: RowInputs, hidden: Tensor | None) -> list[Seen]:
        self.before_call()
        ids, slots = rows.input_ids.tolist(), rows.slot_mapping.tolist()
        positions = rows.positions.tolist()
        starts, context = rows.query_start.tolist(), rows.context_lens.tolist()
        is_tree = rows.is_tree.tolist()
        tables = rows.block_tables.numpy().astype(np.int64)
        masks = rows.tree_mask.numpy().view(np.uint64)
        assert hidden is None or len(hidden) == len(ids)
        states = hidden.to(torch.int64).tolist() if hidden is not None else None
        size = self.layout.tokens_per_block
        seen = []
        for b, before in enumerate(context):
            count = starts[b + 1] - starts[b]
            at = np.arange(before + count)
            own_slots = tables[b][at // size] * size + at % size
            for index, row in enumerate(range(starts[b], starts[b + 1])):
                visible = own_slots[: before + index]
                if is_tree[b]:
                    bits = np.unpackbits(masks[row].view(np.uint8), bitorder="little")[:index]
                    among = own_slots[before : before + index][bits.astype(bool)]
                    visible = np.concatenate((own_slots[:before], among))
                words = states[row] if states is not None else ()
                state = sum(word << 16 * i for i, word in enumerate(words))
                own = int(own_slots[before + index])
                seen.append(
                    self._feed_row(ids[row], positions[row], state, slots[row], visible, own)
                )
        return seen

    def logits(self, rows: Sequence[Seen]) -> Tensor:
        """float32 [rows, vocab]."""
        model = self._model
        states = []
        for row in rows:
            wrong = self._kind is not Kind.TARGET and mix(row.luck, 77) % 100 >= model.skill
            states.append(row.state ^ WORD if wrong else row.state)
        state = np.array(states, np.uint64)[:, None]
        columns = np.arange(1, model.vocab + 1, dtype=np.uint64)[None]
        levels = _mix_all(state, columns) >> np.uint64(44) & np.uint64(0x3FF)
        logits = levels.astype(np.float32) / np.float32(128)
        for i, (row, word) in enumerate(zip(rows, states, strict=True)):
            favoured = int(self._favoured[row.next_position % model.period])
            if model.nan_every and mix(word, 99) % model.nan_every == 0:
                logits[i] = np.nan
            elif mix(word, 55) % 100 < model.regularity and favoured < model.vocab:
                logits[i, favoured] += np.float32(12)
        return torch.from_numpy(logits)

    def _grow(
        self, group: RowGroup, root: Seen, sampling: Sequence[Tensor]
    ) -> tuple[list[int], list[int], list[np.float32]]:
        """One request's tree, depth by depth: the best k candidates are fed, each seeing the ones
        above it; of all candidates the best are kept."""
        model, size = self._model, self.layout.tokens_per_block
        end = group.context + len(group.tokens)
        at = np.arange(end + model.topk * (model.num_steps - 1))
        slots = np.array(list(map(int, group.blocks)))[at // size] * size + at % size
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[np.float32] = []
        fed: dict[int, tuple[Seen, Any]] = {-1: (root, slots[:end])}

        def expand(rows: Sequence[Seen], above: Sequence[int], depth: int) -> None:
            columns = SamplingColumns._make((*sampling[:6], sampling[6] + depth))
            same = SamplingColumns._make(column.expand(len(rows)) for column in columns)
            drawn = draft_candidates(self.logits(rows), *same, None, model.topk)
            ids, logprobs = drawn[0].tolist(), drawn[1].numpy()
            for parent, own, added in zip(above, ids, logprobs, strict=True):
                start = scores[parent] if parent >= 0 else np.float32(0)
                tokens.extend(own)
                parents.extend([parent] * model.topk)
                scores.extend(start + np.minimum(added, np.float32(0)))

        def best(nodes: Sequence[int], count: int) -> list[int]:
            return sorted(nodes, key=lambda node: -scores[node])[:count]

        expand([root], [-1], 0)
        beam: Sequence[int] = range(len(tokens))
        cache = end
        for depth in range(1, model.num_steps):
            first = len(tokens)
            reached = []
            for node in beam:
                above, visible = fed[parents[node]]
                slot = int(slots[cache])
                cache += 1
                seen = self._feed_row(
                    tokens[node], end - 1 + depth, above.state, slot, visible, slot
                )
                fed[node] = seen, np.append(visible, slot)
                reached.append(seen)
            expand(reached, beam, depth)
            beam = best(range(first, len(tokens)), model.topk)
        kept = sorted(best(range(len(tokens)), model.num_nodes))
        place = {node: i for i, node in enumerate((-1, *kept), -1)}
        return (
            [tokens[node] for node in kept],
            [place[parents[node]] for node in kept],
            [scores[node] for node in kept],
        )
