"""Products: in which dtype a device multiplies best, and how fast."""

from __future__ import annotations

import time

import torch

_EFFICIENCY = {torch.bfloat16: 0.2, torch.float32: 0.6}
"""Share of the speed of a large product that steps reach, as measured: the rest is passes over the
vocabulary, norms and attention, which faster products do not shorten."""


def product_dtype(device: str) -> torch.dtype:
    """bfloat16, but float32 on a CPU for which torch has no kernels of bfloat16 products: there it
    computes them element by element, 50 times slower and more."""
    if device == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return torch.bfloat16


def efficiency(device: str) -> float:
    """What writing and training reach of `measure_gflops`."""
    return _EFFICIENCY[product_dtype(device)]


def measure_gflops(device: str, seconds: float = 0.3) -> float:
    """The best of a few products ``[2048, 1024] x [1024, 2048]`` in `product_dtype`, in 10^9
    operations a second."""
    dtype = product_dtype(device)
    a = torch.randn(2048, 1024, device=device).to(dtype)
    b = torch.randn(1024, 2048, device=device).to(dtype)
    best, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end or best == float("inf"):
        began = time.perf_counter()
        (a @ b)[0, 0].item()
        best = min(best, time.perf_counter() - began)
    return 2 * 2048 * 1024 * 2048 / best / 1e9
