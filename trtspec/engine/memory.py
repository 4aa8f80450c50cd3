"""Bytes that a model takes, from its configuration alone."""

from __future__ import annotations

import torch

from trtspec.config.draft import DraftConfig
from trtspec.config.model import ModelConfig


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype given by name."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    return torch_dtype.itemsize


def weight_bytes(model: DraftConfig, dtype: str) -> int:
    """Bytes of the weights that one pass reads (norms and biases left out); ``model`` may be a
    target, which is a language model as a draft may be."""
    return element_bytes(dtype) * model.matrix_elements


def kv_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Bytes of K and V of one token over all layers."""
    return model.kv_elements_per_token * element_bytes(dtype)
