"""The ops of `trtspec.ops.resident_step`, written for reading."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.ops.resident_step import (
    ITEM,
    STATE,
    Advanced,
    Draft,
    ResidentTensors,
    RolloutCall,
    VerifyCall,
)
from trtspec.ops.sampling import SamplingColumns


class _Held:
    """One place, or one item, by the names of its columns."""

    def __init__(self, names: Sequence[str], row: Tensor) -> None:
        self.__dict__.update(zip(names, row.tolist(), strict=True))

    def __getattr__(self, name: str) -> int:
        raise AttributeError(name)


def _items(kept: ResidentTensors, items: Tensor) -> list[tuple[_Held, _Held] | None]:
    """Each item with what is known of its request; None: it feeds nothing."""
    found: list[tuple[_Held, _Held] | None] = []
    for row in items:
        item = _Held(ITEM, row)
        state = _Held(STATE, kept.state[item.place]) if item.place >= 0 else None
        found.append(None if state is None or state.end else (item, state))
    return found


def _depth(state: _Held) -> int:
    return min(state.max_depth, state.reach - state.length)


def _num_pairs(state: _Held, behind: int) -> int:
    return state.length - 1 + behind - state.drafted


def _rolls_out(item: _Held, state: _Held, behind: int) -> bool:
    may = item.generates and item.max_nodes > 0 and _depth(state) > 0
    return bool(may and _num_pairs(state, behind) > 0)


def _usable(
    nodes: tuple[list[int], list[int], list[float]], ends: Sequence[int], depth: int, count: int
) -> tuple[list[int], list[int], list[int]]:
    """Tokens, parents and depths of what a request can use of a rollout."""
    tokens, parents, scores = nodes
    depths: list[int] = []
    may: list[bool] = []
    for token, parent, score in zip(tokens, parents, scores, strict=True):
        depths.append(1 if parent < 0 else depths[parent] + 1)
        above = parent < 0 or may[parent]
        may.append(above and score > -float("inf") and depths[-1] <= depth and token not in ends)
    ranked = sorted((i for i in range(len(may)) if may[i]), key=lambda i: -scores[i])
    chosen = sorted(ranked[:count])
    place = {-1: -1} | {node: i for i, node in enumerate(chosen)}
    return (
        [tokens[i] for i in chosen],
        [place[parents[i]] for i in chosen],
        [depths[i] for i in chosen],
    )


def _filled(values: Sequence[int | bool], count: int, fill: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor([*values, *[fill] * (count - len(values))], dtype=dtype)


def _columns(
    kept: ResidentTensors, of: Sequence[tuple[int, int] | None], count: int
) -> SamplingColumns:
    """Those of rows, each by its place and the output token that it emits; None: zeros."""
    rows = [*of, *[None] * (count - len(of))]
    named = [None if row is None else _Held(STATE, kept.state[row[0]]) for row in rows]
    filters = torch.stack(
        [torch.zeros(3) if row is None else kept.filters[row[0]] for row in rows]
        or [torch.zeros(3)]
    )[: len(rows)]
    longs = [
        torch.tensor([0 if held is None else getattr(held, name) for held in named])
        for name in ("top_k", "seed", "sample_index")
    ]
    outputs = torch.tensor([0 if row is None else row[1] for row in rows])
    top_k, seed, sample_index, output = (values.long() for values in (*longs, outputs))
    temperature, top_p, min_p = (column.clone() for column in filters.unbind(1))
    return SamplingColumns(temperature, top_k.int(), top_p, min_p, seed, sample_index, output)


class _Rows:
    """Rows of a call, request after request."""

    def __init__(self, tables: Tensor, tokens_per_block: int) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.masks: list[int] = []
        self.starts = [0]
        self.contexts: list[int] = []
        self.are_trees: list[bool] = []
        self._tables, self._size = tables, tokens_per_block
        self._blocks: list[Tensor] = []

    def add(
        self, place: int, context: int, tokens: Sequence[int], tree: Sequence[Sequence[int]]
    ) -> None:
        """The rows of a request: its tokens, then nodes (tokens, parents and depths)."""
        table = self._tables[place]
        self._blocks.append(table)
        nodes, parents, depths = tree
        count = len(tokens) + len(nodes)
        self.ids += [*tokens, *nodes]
        self.positions += [context + i for i in range(len(tokens))]
        self.positions += [context + depth for depth in depths]
        for position in range(context, context + count):
            block = int(table[position // self._size])
            self.slots.append(block * self._size + position % self._size)
        masks = [0] * len(tokens)
        if nodes:
            masks = [1]
            for node, parent in enumerate(parents):
                masks.append(masks[parent + 1] | 1 << node + 1)
        self.masks += masks
        self._end(context, bool(nodes))

    def add_none(self) -> None:
        self._blocks.append(torch.full_like(self._tables[0], -1))
        self._end(0, False)

    def _end(self, context: int, is_tree: bool) -> None:
        self.starts.append(len(self.ids))
        self.contexts.append(context)
        self.are_trees.append(is_tree)

    def tensors(self, count: int, words: int) -> list[Tensor]:
        """Padded to so many rows."""
        masks = torch.zeros(count, words, dtype=torch.int64)
        for row, mask in enumerate(self.masks):
            for word in range(words):
                bits = mask >> 64 * word & (1 << 64) - 1
                masks[row, word] = bits - (1 << 64 if bits >> 63 else 0)
        longs = (self.ids, 0), (self.positions, 0), (self.slots, -1)
        return [
            *(_filled(values, count, fill, torch.int64) for values, fill in longs),
            torch.stack(self._blocks),
            torch.tensor(self.starts, dtype=torch.int32),
            torch.tensor(self.contexts, dtype=torch.int32),
            torch.tensor(self.are_trees),
            masks,
        ]


def pack_verify_reference(
    kept: ResidentTensors,
    tables: Tensor,
    items: Tensor,
    chunk: Tensor,
    draft: Draft,
    *,
    behind: int,
    num_rows: int,
    num_logits: int,
    tokens_per_block: int,
    mask_words: int,
) -> VerifyCall:
    """`pack_verify`."""
    rows = _Rows(tables, tokens_per_block)
    logits_rows: list[int] = []
    adapters: list[int] = []
    emits: list[tuple[int, int]] = []
    tokens: list[int] = []
    parents: list[int] = []
    starts = [0]
    for i, found in enumerate(_items(kept, items)):
        if found is None:
            rows.add_none()
            starts.append(len(tokens))
            continue
        item, state = found
        tree: tuple[list[int], list[int], list[int]] = [], [], []
        if draft.tokens.shape[1] and _rolls_out(item, state, behind):
            ends = kept.ends[item.place].tolist()
            nodes = draft.tokens[i].tolist(), draft.parents[i].tolist(), draft.scores[i].tolist()
            tree = _usable(nodes, [end for end in ends if end >= 0], _depth(state), item.max_nodes)
        fed = [state.newest]
        context = state.length - 1
        if not item.generates:
            fed = chunk[item.first_token : item.first_token + item.num_rows].tolist()
            context = item.start
        first = len(rows.ids)
        rows.add(item.place, context, fed, tree)
        adapters += [state.adapter] * (len(rows.ids) - first)
        if item.samples:
            output = state.length - state.num_prompt
            logits_rows += range(first + len(fed) - 1, len(rows.ids))
            emits += [(item.place, output + depth) for depth in (0, *tree[2])]
            tokens += [0, *tree[0]]
            parents += [-1, *(parent + 1 for parent in tree[1])]
        starts.append(len(tokens))
    return VerifyCall(
        rows.tensors(num_rows, mask_words),
        _filled(logits_rows, num_logits, 0, torch.int64),
        _filled(adapters, num_rows, -1, torch.int32),
        _columns(kept, emits, num_logits),
        _filled(tokens, num_logits, 0, torch.int64),
        _filled(parents, num_logits, 0, torch.int32),
        torch.tensor(starts, dtype=torch.int32),
    )


def pack_rollout_reference(
    kept: ResidentTensors,
    tables: Tensor,
    items: Tensor,
    *,
    behind: int,
    num_rows: int,
    tokens_per_block: int,
    mask_words: int,
) -> RolloutCall:
    """`pack_rollout`."""
    rows, ring = _Rows(tables, tokens_per_block), kept.pairs.shape[1]
    last_rows: list[int] = []
    ring_rows: list[int] = []
    columns: list[tuple[int, int] | None] = []
    for found in _items(kept, items):
        if found is None or not _rolls_out(*found, behind):
            rows.add_none()
            last_rows.append(0)
            columns.append(None)
            continue
        item, state = found
        first = state.drafted - behind
        places = [(first + i) % ring for i in range(_num_pairs(state, behind))]
        waiting = [int(kept.pairs[item.place, place]) for place in places]
        rows.add(item.place, state.drafted - state.absent, waiting, ([], [], []))
        ring_rows += [item.place * ring + place for place in places]
        last_rows.append(len(rows.ids) - 1)
        columns.append((item.place, state.length - state.num_prompt))
    return RolloutCall(
        rows.tensors(num_rows, mask_words),
        torch.tensor(last_rows),
        _columns(kept, columns, len(items)),
        _filled(ring_rows, num_rows, 0, torch.int64),
    )


def advance_reference(
    kept: ResidentTensors,
    tables: Tensor,
    items: Tensor,
    chunk: Tensor,
    call: VerifyCall,
    sampled: Tensor,
    accepted_rows: Tensor,
    num_emitted: Tensor,
    *,
    tokens_per_block: int,
    behind: int,
    not_final: int,
) -> Advanced:
    """`advance`."""
    (count, width), (places, ring) = accepted_rows.shape, kept.pairs.shape
    result = torch.zeros(count, 4, width, dtype=torch.int64)
    facts = torch.zeros(count, 4, dtype=torch.int64)
    source, wanted = torch.full((2, count, width), -1)
    kept_rows = torch.zeros(count, ring, dtype=torch.int64)
    ring_rows = torch.full((count, ring), places * ring)
    for i, row in enumerate(items):
        if row[0] >= 0:
            facts[i, 2] = kept.state[row[0], STATE.index("drafted")]
    for i, found in enumerate(_items(kept, items)):
        if found is None:
            continue
        item, state = found
        root = state.length - 1 if item.generates else item.start + item.num_rows - 1
        rolled = _rolls_out(item, state, behind)
        own = slice(int(call.row_start[i]), int(call.row_start[i + 1]))
        emitted, rows, reason = _emitted(kept, state, item, call, sampled, accepted_rows[i], own)
        assert own.start == own.stop or num_emitted[i] == int((accepted_rows[i] >= 0).sum())
        nodes = max(own.stop - own.start - 1, 0)
        facts[i] = torch.tensor([len(emitted), reason, state.drafted, nodes])
        parts = emitted, rows, call.tokens[own][1:].tolist(), (call.parents[own][1:] - 1).tolist()
        for part, values in enumerate(parts):
            result[i, part, : len(values)] = torch.tensor(values, dtype=torch.int64)
        for place, accepted in enumerate(rows):
            for slots, position in ((source, root + accepted), (wanted, root + place)):
                block = int(tables[item.place, position // tokens_per_block])
                if place != accepted:
                    slots[i, place] = block * tokens_per_block + position % tokens_per_block
        if ring and state.max_depth > 0:
            drafted = state.drafted
            if rolled or not item.generates:
                drafted = max(drafted, root + behind - not_final)
            fed = int(call.rows[4][i])
            pairs = _pairs(item, root, fed, chunk, emitted, rows)
            kept.state[item.place, STATE.index("drafted")] = facts[i, 2] = drafted
            first = drafted - behind
            newest = len(emitted) if item.generates else 1
            if root + newest - first > ring:
                kept.state[item.place, STATE.index("max_depth")] = 0
            else:
                waiting = [pair for pair in pairs if pair[0] >= first]
                for place, (position, token, from_row) in enumerate(waiting):
                    kept.pairs[item.place, position % ring] = token
                    kept_rows[i, place] = from_row
                    ring_rows[i, place] = item.place * ring + position % ring
        if emitted:
            kept.state[item.place, STATE.index("length")] += len(emitted)
            kept.state[item.place, STATE.index("newest")] = emitted[-1]
        kept.state[item.place, STATE.index("end")] = reason
    return Advanced(torch.cat([facts, result.flatten(1)], 1), source, wanted, kept_rows, ring_rows)


def _emitted(
    kept: ResidentTensors,
    state: _Held,
    item: _Held,
    call: VerifyCall,
    sampled: Tensor,
    walked: Tensor,
    own: slice,
) -> tuple[list[int], list[int], int]:
    """The tokens that a request emits, the rows that do, and its finish reason (see
    `trtspec.executor.step.step_result.REASONS`)."""
    if own.start == own.stop:
        return [], [], 0
    rows = [row for row in walked.tolist() if row >= 0]
    tokens = [int(call.tokens[own][row]) for row in rows[1:]]
    bonus = int(sampled[own][rows[-1]])
    if bonus >= 0:
        tokens.append(bonus)
    if not tokens:
        return [], [], 3
    room = state.limit - state.length
    for count, token in enumerate(tokens, 1):
        if token in kept.ends[item.place].tolist():
            return tokens[:count], rows[:count], 1
        if count == room:
            return tokens[:count], rows[:count], 2
    return tokens, rows[: len(tokens)], 0


def _pairs(
    item: _Held, root: int, fed: int, chunk: Tensor, emitted: list[int], rows: list[int]
) -> list[tuple[int, int, int]]:
    """Position, token and row of the call of all pairs that a step brings about, of a request whose
    rows begin at ``fed``."""
    pairs = []
    if not item.generates:
        after = chunk[item.first_token + 1 : item.first_token + item.num_rows + 1].tolist()
        count = item.num_rows - 1 if item.samples else item.num_rows
        pairs = [(item.start + i, after[i], fed + i) for i in range(count)]
    newest = fed + item.num_rows - 1
    return pairs + [(root + i, emitted[i], newest + row) for i, row in enumerate(rows)]
