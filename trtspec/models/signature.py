"""The inputs of each kind of engine: example tensors for export, and the order of the flat list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim
from torch.utils import _pytree as pytree

from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.models.adapters import AdapterRows
from trtspec.models.causal_lm import new_caches
from trtspec.models.layer_facts import decoder_caches, keeps_states
from trtspec.models.rows import PackedRows
from trtspec.models.state_rows import StateRows
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns

_MAX_DIM = 1 << 30

# A package records the structure of its inputs; torch wants a name for each named tuple in it.
for _type in (PackedRows, StateRows, AdapterRows, SamplingColumns):
    pytree._register_namedtuple(_type, serialized_type_name=f"trtspec.{_type.__name__}")


@dataclass(frozen=True)
class Signature:
    """``args``: example arguments of a module's forward. ``dims``: their dynamic dimensions, in the
    same structure. Rows, requests, logits rows and cache blocks are dynamic; the widths of block
    tables and tree masks are fixed."""

    args: tuple[Any, ...]
    dims: tuple[Any, ...]

    def unflatten(self, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
        """A flat list of inputs (see `trtspec.backends.inputs`) as the forward's arguments."""
        leaves, structure = pytree.tree_flatten(self.args)
        given = iter(inputs)
        filled = [None if leaf is None else next(given) for leaf in leaves]
        args: tuple[Any, ...] = pytree.tree_unflatten(filled, structure)
        return args


def model_signature(
    config: ModelConfig, dtype: torch.dtype, layout: CacheLayout, has_adapters: bool = False
) -> Signature:
    """`CausalLM.forward`; ``has_adapters``: of one that was made for some."""
    args, dims = _rows(layout)
    if has_adapters:
        column: Any = {0: _T}
        args = args[0], AdapterRows(args[1], torch.full((_ROWS,), -1, dtype=torch.int32))
        dims = dims[0], AdapterRows(dims[1], column)
    if keeps_states(config):
        slots: Any = {0: _B}
        args = args[0], StateRows(args[1], torch.zeros(_REQUESTS, dtype=torch.int32))
        dims = dims[0], StateRows(dims[1], slots)
    wanted = torch.zeros(5, dtype=torch.int64)
    caches, cache_dims = _caches(config, dtype, layout)
    r = Dim("logits_rows", min=1, max=_MAX_DIM)
    return Signature((*args, wanted, caches), (*dims, {0: r}, cache_dims))


def replay_signature(config: ModelConfig, dtype: torch.dtype, layout: CacheLayout) -> Signature:
    """`trtspec.models.replay.Replay.forward`."""
    slots = torch.zeros(_REQUESTS, dtype=torch.int32)
    rows = torch.zeros(5, dtype=torch.int64)
    row_start = torch.tensor([0, 2, 4, 5], dtype=torch.int32)
    caches, cache_dims = _caches(config, dtype, layout)
    n = Dim("accepted", min=1, max=_MAX_DIM)
    return Signature((slots, rows, row_start, caches), ({0: _B}, {0: n}, {0: _B + 1}, cache_dims))


def verify_signature(config: ModelConfig, dtype: torch.dtype, layout: CacheLayout) -> Signature:
    """`trtspec.backends.slots.verify.VerifyNetwork.forward`."""
    plain = model_signature(config, dtype, layout)
    *args, wanted, caches = plain.args
    *dims, r, cache_dims = plain.dims
    parents = torch.zeros(len(wanted), dtype=torch.int32)
    row_start = torch.zeros(_REQUESTS + 1, dtype=torch.int32)
    columns = SamplingColumns(*(torch.ones(len(wanted), dtype=kind) for kind in COLUMN_DTYPES))
    return Signature(
        (*args, wanted, columns, parents, row_start, caches),
        (*dims, r, SamplingColumns(*[r] * 7), r, {0: _B + 1}, cache_dims),
    )


def feature_signature(
    config: ModelConfig, dtype: torch.dtype, layout: CacheLayout, hidden_in: int
) -> Signature:
    """Feeding rows to a network, with hidden states ``[T, hidden_in]``; ``config`` is its
    decoder."""
    args, dims = _rows(layout)
    caches, cache_dims = _caches(config, dtype, layout)
    hidden = torch.zeros(_ROWS, hidden_in, dtype=dtype)
    return Signature((*args, hidden, caches), (*dims, {0: _T}, cache_dims))


def rollout_signature(
    config: ModelConfig, dtype: torch.dtype, layout: CacheLayout, hidden_in: int = 0
) -> Signature:
    """`TreeRollout.forward`; ``hidden_in`` is 0 for a network that reads no hidden states."""
    args, dims = _rows(layout)
    last_rows = torch.ones(_REQUESTS, dtype=torch.int64)
    sampling, sampling_dims = _sampling()
    hidden = torch.zeros(_ROWS, hidden_in, dtype=dtype) if hidden_in else None
    caches, cache_dims = _caches(config, dtype, layout)
    return Signature(
        (*args, last_rows, sampling, hidden, caches),
        (*dims, {0: _B}, sampling_dims, {0: _T} if hidden_in else None, cache_dims),
    )


def pass_signature(config: ModelConfig, dtype: torch.dtype, layout: CacheLayout) -> Signature:
    """`trtspec.speculative.draft_pass.DraftPass.forward`."""
    plain = model_signature(config, dtype, layout)
    *args, wanted, caches = plain.args
    *dims, r, cache_dims = plain.dims
    columns = SamplingColumns(*(torch.ones(len(wanted), dtype=kind) for kind in COLUMN_DTYPES))
    return Signature(
        (*args, wanted, columns, caches),
        (*dims, r, SamplingColumns(*[r] * 7), cache_dims),
    )


def heads_signature(dtype: torch.dtype, hidden_in: int, reads_roots: bool = False) -> Signature:
    """A rollout without K/V, with hidden states ``[B, hidden_in]``; with ``reads_roots``, the roots
    ``[B] i64`` come before them."""
    sampling, sampling_dims = _sampling()
    hidden = torch.zeros(_REQUESTS, hidden_in, dtype=dtype)
    args, dims = (hidden, sampling), ({0: _B}, sampling_dims)
    if not reads_roots:
        return Signature(args, dims)
    return Signature((torch.zeros(_REQUESTS, dtype=torch.int64), *args), ({0: _B}, *dims))


# All different, so that export cannot confuse them.
_ROWS, _REQUESTS, _BLOCKS, _STATES, _KEPT_ROWS = 7, 3, 11, 6, 13
_T = Dim("rows", min=1, max=_MAX_DIM)
_B = Dim("requests", min=1, max=_MAX_DIM)


def _sampling() -> tuple[Any, Any]:
    columns = SamplingColumns(*(torch.ones(_REQUESTS, dtype=kind) for kind in COLUMN_DTYPES))
    b: Any = {0: _B}
    return columns, SamplingColumns(*[b] * 7)


def _rows(layout: CacheLayout) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    rows = PackedRows(
        positions=torch.zeros(_ROWS, dtype=torch.int64),
        slot_mapping=torch.full((_ROWS,), -1, dtype=torch.int64),
        block_tables=torch.zeros(_REQUESTS, layout.blocks_per_sequence, dtype=torch.int32),
        query_start=torch.tensor([0, 2, 4, _ROWS], dtype=torch.int32),
        context_lens=torch.zeros(_REQUESTS, dtype=torch.int32),
        is_tree=torch.zeros(_REQUESTS, dtype=torch.bool),
        tree_mask=torch.zeros(_ROWS, layout.mask_words, dtype=torch.int64),
    )
    t: Any = {0: _T}
    b: Any = {0: _B}
    starts: Any = {0: _B + 1}
    dims = PackedRows(t, t, b, starts, b, b, t)
    return (torch.zeros(_ROWS, dtype=torch.int64), rows), (t, dims)


def _caches(config: ModelConfig, dtype: torch.dtype, layout: CacheLayout) -> tuple[Any, Any]:
    dims = {
        kind: Dim(name, min=1, max=_MAX_DIM)
        for kind, name in (("paged", "blocks"), ("slot", "states"), ("step", "kept_rows"))
    }
    size = layout.tokens_per_block
    caches = new_caches(config, _BLOCKS, size, dtype, num_states=_STATES, num_rows=_KEPT_ROWS)
    return caches, [tuple({0: dims[b.kind]} for b in cache) for cache in decoder_caches(config)]
