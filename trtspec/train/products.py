"""Products: the dtype in which a device multiplies fastest, and its speed."""

from __future__ import annotations

import time

import torch

_EFFICIENCY = {torch.bfloat16: 0.2, torch.float32: 0.6}
"""Measured share of the speed of a large product that steps reach: the rest is passes over the
vocabulary, norms and attention, which faster products do not shorten."""


def product_dtype(device: str) -> torch.dtype:
    """bfloat16, or float32 on a CPU for which torch has no bfloat16 product kernels: there it
    computes element by element, at least 50 times slower."""
    if device == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return torch.bfloat16


def efficiency(device: str) -> float:
    """The share of `measure_gflops` that writing and training reach."""
    return _EFFICIENCY[product_dtype(device)]


def measure_gflops(device: str, seconds: float = 0.3) -> float:
    """The best of a few products ``[2048, 1024] x [1024, 2048]`` in `product_dtype`, in 10^9
    operations per second."""
    dtype = product_dtype(device)
    a = torch.randn(2048, 1024, device=device).to(dtype)
    b = torch.randn(1024, 2048, device=device).to(dtype)
    best, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end or best == float("inf"):
        began = time.perf_counter()
        (a @ b)[0, 0].item()
        best = min(best, time.perf_counter() - began)
    return 2 * 2048 * 1024 * 2048 / best / 1e9
