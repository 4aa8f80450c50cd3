"""Part ``kernels``: attention beside its floor and torch's own, products, and what is around them.

A floor is the time to read the K/V, or the weights, at the speed measured here. Times are those of
calls in a CUDA graph, as steps replay them; those "with inputs" are of single calls, launches and
what comes from the host included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.bench.floor import (
    copies,
    linear_rates,
    measure_bandwidth,
    seconds_on_device,
    seconds_per_call,
)
from trtspec.bench.gpu_bringup.parity import acceptance, compaction, sampling_inputs
from trtspec.bench.gpu_bringup.part import Place
from trtspec.bench.ops import BLOCK_SIZE, AttentionShape, attention_call
from trtspec.ops.sampling import sample

_DTYPE = torch.bfloat16
_CONTEXTS, _ROWS = (128, 1024, 8192, 32768), (1, 8, 64, 128)


def run(place: Place) -> Mapping[str, Any]:
    """Everything, in ms."""
    bandwidth = measure_bandwidth(place.device)
    small = place.is_rehearsal
    contexts, rows = (_CONTEXTS[:1], _ROWS[:2]) if small else (_CONTEXTS, _ROWS)
    seconds, width = (0.01, 512) if small else (0.1, 4096)
    attended = [
        attention_row(place.device, context, count, seconds, bandwidth)
        for context in contexts
        for count in rows
    ]
    products = [
        {
            "rows": count,
            "ms": width * width * _DTYPE.itemsize / rate * 1e3,
            "GB/s": rate / 1e9,
            "TFLOP/s": flops / 1e12,
            "share of memory floor": rate / bandwidth,
        }
        for count, rate, flops in linear_rates(place.device, _DTYPE, width, rows, seconds)
    ]
    return {
        "memory GB/s": bandwidth / 1e9,
        "attention": attended,
        "products": products,
        "others": others(place.device, 999 if small else 128256, seconds),
    }


def attention_row(
    device: str, context: int, rows: int, seconds: float, bandwidth: float
) -> dict[str, Any]:
    """One request's verify step of a layer as of an 8B model, and the same by torch."""
    shape = AttentionShape()
    size = 2 * context * shape.kv_heads * shape.head_dim * _DTYPE.itemsize
    blocks = -(-(context + rows) // BLOCK_SIZE)
    dims = (2, blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
    caches = [torch.randn(dims).to(_DTYPE).to(device) for _ in range(min(copies(size), 16))]
    ours = seconds_on_device(
        [attention_call(shape, _DTYPE, k, v, context, rows) for k, v in caches], seconds, device
    )
    theirs = seconds_on_device(
        [torch_call(shape, k, v, context, rows) for k, v in caches], seconds, device
    )
    return {
        "context": context,
        "rows": rows,
        "ms": ours * 1e3,
        "scaled_dot_product_attention ms": theirs * 1e3,
        "floor ms": size / bandwidth * 1e3,
        "share of floor": size / bandwidth / ours,
    }


def torch_call(
    shape: AttentionShape, k: Tensor, v: Tensor, context: int, rows: int
) -> Callable[[], Tensor]:
    """Torch's attention over the same K/V, dense, with a mask of causal rows if there are many."""
    total = context + rows
    keys, values = (
        cache.view(-1, shape.kv_heads, shape.head_dim)[:total].transpose(0, 1)[None].contiguous()
        for cache in (k, v)
    )
    q = torch.randn(1, shape.heads, rows, shape.head_dim).to(k.dtype).to(k.device)
    at = torch.arange(total, device=k.device)
    mask = None if rows == 1 else at <= at[context:, None]
    return partial(F.scaled_dot_product_attention, q, keys, values, attn_mask=mask, enable_gqa=True)


def others(device: str, vocab: int, seconds: float) -> list[dict[str, Any]]:
    """What a step does beside its networks."""
    given = sampling_inputs(vocab, device)
    sampled = seconds_on_device([partial(sample, *given)], seconds, device)
    calls: Sequence[tuple[str, Callable[[], object]]] = (
        ("accept, 9 requests, with its inputs", partial(acceptance, device)),
        ("kv_compact, 4 rows, with its inputs", partial(compaction, device)),
    )
    with_inputs = [
        {"op": name, "ms": seconds_per_call([call], seconds, device) * 1e3} for name, call in calls
    ]
    return [{"op": f"sample, 6 rows of {vocab}", "ms": sampled * 1e3}, *with_inputs]
