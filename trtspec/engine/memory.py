"""Bytes that a model takes, from its configuration alone."""

from __future__ import annotations

import torch

from trtspec.config.build import BuildConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.model import ModelConfig

_SCALE_BYTES = 4


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype given by name."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    return torch_dtype.itemsize


def weight_bytes(model: DraftConfig, build: BuildConfig) -> int:
    """Bytes of the weights that one pass of a resolved build reads (norms, biases and scales of
    whole outputs left out); ``model`` may be a target, which is a language model as a draft may
    be."""
    elements = model.matrix_elements
    if not build.has_int8_weights:
        return element_bytes(build.dtype) * elements
    group = build.weight_group_size
    return elements + (elements // group * _SCALE_BYTES if group else 0)


def kv_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Bytes of K and V of one token over all layers."""
    return model.kv_elements_per_token * element_bytes(dtype)
