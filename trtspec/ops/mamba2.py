"""``mamba2``: the selective states of Mamba-2 (Dao and Gu, arXiv 2405.21060), row by row."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from trtspec.ops import native  # noqa: F401  registers the op
from trtspec.ops.state_walk import StateWalk

UNLIMITED = 0.0, math.inf
"""Limits of time steps that change none."""


def mamba2(
    xbc: Tensor,
    dt: Tensor,
    gate: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    state: Tensor,
    kept: Tensor,
    walk: StateWalk,
    groups: int,
    limits: tuple[float, float] = UNLIMITED,
) -> Tensor:
    """Of every head, whose state is a matrix ``S [N, P]``, along each row's own path::

        S = exp(-exp(a_log) * d) * S + B (d * x);  out = (C^T S + skip * x) * silu(gate)

    with ``d = softplus(dt + dt_bias)``, cut to the limits. Heads share the B and C of their group.
    All rows go through the recurrent form, those of prompts too.

    Args:
        xbc: [T, H * P + 2 * G * N], x of all heads, B of all groups, then C; float32, bfloat16 or
            float16. Arithmetic is in float32.
        dt: [T, H], gate: [T, H * P]; dtype of xbc.
        a_log, dt_bias, skip: [H] float32.
        state: [S, H, N * P] float32. Written.
        kept: [>= T, 1, H], dtype of xbc. dt of rows that may be rejected is written.
        walk: see `StateWalk`.
        groups: G.
        limits: of d, from least to most.
    Returns:
        [T, H * P], dtype of xbc, rounded once; padding is zero. The bits of a row depend on its own
        path only.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
        ValueError: a slot, a row or a mask of the walk lies outside, or a state is named twice.
    """
    result: Tensor = torch.ops.trtspec.mamba2(
        xbc, dt, gate, a_log, dt_bias, skip, state, kept, *walk, groups, *limits
    )
    return result


def mamba2_reference(
    xbc: Tensor,
    dt: Tensor,
    gate: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    state: Tensor,
    kept: Tensor,
    walk: StateWalk,
    groups: int,
    limits: tuple[float, float] = UNLIMITED,
) -> Tensor:
    """``mamba2`` in plain torch, in float64 where that is the dtype of xbc and the state."""
    wide = torch.promote_types(xbc.dtype, torch.float32)
    inner, heads = gate.shape[1], dt.shape[1]
    shared = (xbc.shape[1] - inner) // 2
    x, b, c = torch.split(xbc.to(wide), [inner, shared, shared], dim=1)
    x = torch.unflatten(x, 1, (heads, -1))
    b, c = (
        torch.unflatten(each, 1, (groups, -1)).repeat_interleave(heads // groups, 1)
        for each in (b, c)
    )
    steps = softplus(dt.to(wide) + dt_bias.to(wide)).clamp(*limits)
    decay = torch.exp(-a_log.to(wide).exp() * steps)
    out, parents, seen = torch.zeros_like(x), walk.parents().tolist(), dict[int, Tensor]()
    for request, slot, rows, certain in walk.spans():
        committed = state[slot] if walk.context_lens[request] else torch.zeros_like(state[slot])
        for row in rows:
            before = seen.get(parents[row], committed.view(heads, -1, x.shape[2]))
            taken = b[row, :, :, None] * (steps[row, :, None] * x[row])[:, None]
            seen[row] = decay[row, :, None, None] * before + taken
            out[row] = (c[row, :, :, None] * seen[row]).sum(1) + skip[:, None] * x[row]
            if row not in certain:
                kept[row, 0] = dt[row]
        state[slot] = seen[certain[-1]].flatten(1)
    return (out.flatten(1) * silu(gate.to(wide))).to(xbc.dtype)


@torch.library.register_fake("trtspec::mamba2")  # type: ignore[untyped-decorator]
def _mamba2_fake(xbc: Tensor, dt: Tensor, gate: Tensor, *others: object) -> Tensor:
    return xbc.new_empty(gate.shape)
