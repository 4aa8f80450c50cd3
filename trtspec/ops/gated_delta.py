"""``gated_delta``: the gated delta rule (Yang et al., arXiv 2412.06464), row by row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from trtspec.ops import native  # noqa: F401  registers the op
from trtspec.ops.state_walk import StateWalk


def gated_delta(
    qkv: Tensor,
    gates: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    kept: Tensor,
    walk: StateWalk,
    key_dim: int,
    tiled: bool = False,
) -> Tensor:
    """Of every value head, whose state is a matrix ``S [K, V]``, along each row's own path::

        S = decay * S;  S = S + k (beta * (v - k^T S));  out = q^T S

    with ``beta = sigmoid(b)`` and ``decay = exp(-exp(a_log) * softplus(a + dt_bias))``; q and k are
    divided by their lengths (``sqrt(x^2 + 1e-6)``), q by ``sqrt(K)`` too. H_v / H_k neighbouring
    value heads share the q and k of a key head; ``tiled``: value head h has those of key head
    h % H_k. All rows go through the recurrent form, those of prompts too.

    Args:
        qkv: [T, 2 * H_k * K + H_v * V], heads of q, of k, of v; float32, bfloat16 or float16.
            Arithmetic is in float32.
        gates: [T, 2 * H_v], b and then a, dtype of qkv.
        a_log, dt_bias: [H_v] float32.
        state: [S, H_v, K * V] float32. Written.
        kept: [>= T, 1, 2 * H_v], dtype of qkv. The gates of rows that may be rejected are written.
        walk: see `StateWalk`.
        key_dim: K. tiled: see above.
    Returns:
        [T, H_v * V], dtype of qkv, rounded once; padding is zero. The bits of a row depend on its
        own path only.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
        ValueError: a slot, a row or a mask of the walk lies outside, or a state is named twice.
    """
    result: Tensor = torch.ops.trtspec.gated_delta(
        qkv, gates, a_log, dt_bias, state, kept, *walk, key_dim, tiled
    )
    return result


def gated_delta_reference(
    qkv: Tensor,
    gates: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    kept: Tensor,
    walk: StateWalk,
    key_dim: int,
    tiled: bool = False,
) -> Tensor:
    """``gated_delta`` in plain torch, in float64 where that is the dtype of qkv and the state."""
    wide = torch.promote_types(qkv.dtype, torch.float32)
    heads = state.shape[1]
    values = heads * state.shape[2] // key_dim
    keys = (qkv.shape[1] - values) // 2
    q, k, v = torch.split(qkv.to(wide), [keys, keys, values], dim=1)
    q, k = (_unit(torch.unflatten(x, 1, (-1, key_dim))) for x in (q, k))
    of_key, count = torch.arange(heads), keys // key_dim
    of_key = of_key % count if tiled else of_key // (heads // count)
    q, k = q[:, of_key] * key_dim**-0.5, k[:, of_key]
    v = torch.unflatten(v, 1, (heads, -1))
    b, a = gates.to(wide).chunk(2, dim=1)
    beta = torch.sigmoid(b)
    decay = torch.exp(-a_log.to(wide).exp() * softplus(a + dt_bias.to(wide)))
    out, parents, seen = torch.zeros_like(v), walk.parents().tolist(), dict[int, Tensor]()
    for request, slot, rows, certain in walk.spans():
        committed = state[slot] if walk.context_lens[request] else torch.zeros_like(state[slot])
        for row in rows:
            before = committed.view(heads, key_dim, -1)
            if parents[row] >= 0:
                before = seen[parents[row]]
            kept_part = decay[row, :, None, None] * before
            key = k[row, :, :, None]
            delta = beta[row, :, None] * (v[row] - (key * kept_part).sum(1))
            seen[row] = kept_part + key * delta[:, None]
            out[row] = (q[row, :, :, None] * seen[row]).sum(1)
            if row not in certain:
                kept[row, 0] = gates[row]
        state[slot] = seen[certain[-1]].flatten(1)
    return out.flatten(1).to(qkv.dtype)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


@torch.library.register_fake("trtspec::gated_delta")  # type: ignore[untyped-decorator]
def _gated_delta_fake(
    qkv: Tensor, gates: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, *others: object
) -> Tensor:
    *_, key_dim, _ = others
    assert isinstance(key_dim, int)
    return qkv.new_empty(qkv.shape[0], state.shape[1] * (state.shape[2] // key_dim))
