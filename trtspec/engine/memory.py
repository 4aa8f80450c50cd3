"""Bytes that a model takes, from its configuration alone."""

from __future__ import annotations

import torch

from trtspec.config.model import ModelConfig


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype given by name."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    return torch_dtype.itemsize


def weight_bytes(model: ModelConfig, dtype: str) -> int:
    """Bytes of the weights that one decoding step reads (norms and biases left out)."""
    heads = model.num_heads + 2 * model.num_kv_heads
    attention = model.hidden_size * model.head_dim * (heads + model.num_heads)
    mlp = 3 * model.hidden_size * model.intermediate_size
    head = model.vocab_size * model.hidden_size
    return element_bytes(dtype) * (model.num_layers * (attention + mlp) + head)


def kv_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Bytes of K and V of one token over all layers."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * element_bytes(dtype)
