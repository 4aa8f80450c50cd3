"""Sessions: load one compiled artifact (or the module itself) and run it on flat tensors.

An engine takes packed rows, T of them over B requests, without padding between requests:

    input_ids      [T] i64     token of each row
    positions      [T] i64     position for the rotary embedding (tree nodes: root + depth)
    slot_mapping   [T] i64     flat cache slot that receives the row's K/V; -1 marks padding
    block_tables   [B, M] i32  cache blocks of each request in order; -1 where it has none
    query_start    [B+1] i32   first row of each request
    context_lens   [B] i32     committed tokens that every row of the request sees
    is_tree        [B] bool    False: rows are causal among themselves
    tree_mask      [T, W] i64  True: bit j = the row sees cache position context_lens + j
    logits_rows    [R] i64     a language model: rows whose logits are wanted
    last_rows, temperature, top_k, top_p, min_p, seed, sample_index, output_index  [B]   a rollout
    hidden_in      [T, n*H]    a network that reads the target's states: those of each row
    k_cache * L, v_cache * L   [num_blocks, block_size, kv_heads, head_dim], written in place

A target that samples and accepts by itself (see `trtspec.backends.slots.verify`) takes, behind
``logits_rows [R]``, the seven sampling values and ``parents`` of these rows, ``[R]``, and
``row_start [J+1]`` of the requests to judge; it returns, behind what a language model does,
``sampled [R]``, ``accepted_rows [J, P]`` and ``num_emitted [J]``.

A language model returns float32 logits ``[R, V]`` and, if it was built to, the captured states
``[T, n*H]``; a network over states, which is called for its K/V, rows ``[T, H]`` that are not read;
a rollout what `TreeRollout.forward` returns. The rollout of a network without K/V takes no rows:
``hidden_in [B, n*H]``, the state before each request's root, and the seven sampling values.
`trtspec.models.signature` has the same order as example tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.models.signature import Signature
from trtspec.ops import native as native  # registers the custom ops


class Session(Protocol):
    """Runs one engine; inputs and outputs are flat, in the order given above."""

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run once; cache tensors among the inputs are written in place."""
        ...


class ModuleSession:
    """A torch module of the same signature: an uncompiled model (for tests and debugging, only when
    asked for), or one that runs lowered graphs."""

    def __init__(self, module: nn.Module, signature: Signature, device: str = "cpu") -> None:
        self._module = module.to(device).eval()
        self._signature = signature

    # Not inference_mode: the sampler changes the logits in place, which its tensors forbid.
    @torch.no_grad()
    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(self._module(*self._signature.unflatten(inputs)))
