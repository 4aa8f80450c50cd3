"""Bytes that a model takes, from its configuration alone."""

from __future__ import annotations

import torch

from trtspec.config.eagle import EagleConfig
from trtspec.config.model import ModelConfig


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype given by name."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    return torch_dtype.itemsize


def weight_bytes(model: ModelConfig | EagleConfig, dtype: str) -> int:
    """Bytes of the weights that one pass reads (norms and biases left out)."""
    if isinstance(model, EagleConfig):
        decoder, head = model.decoder, model.draft_vocab_size * model.decoder.hidden_size
        hidden, inner = decoder.hidden_size, decoder.head_dim
        if model.version == 3:
            wide = hidden * inner * (decoder.num_heads + 2 * decoder.num_kv_heads)
            head += model.hidden_in * hidden + wide
        else:
            head += 2 * hidden * hidden
    else:
        decoder, head = model, model.vocab_size * model.hidden_size
    heads = decoder.num_heads + 2 * decoder.num_kv_heads
    attention = decoder.hidden_size * decoder.head_dim * (heads + decoder.num_heads)
    mlp = 3 * decoder.hidden_size * decoder.intermediate_size
    return element_bytes(dtype) * (decoder.num_layers * (attention + mlp) + head)


def kv_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Bytes of K and V of one token over all layers."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * element_bytes(dtype)
