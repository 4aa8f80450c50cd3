"""llama.cpp's tensor names for Mamba-2, the form in which files hold them, and their keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.containers.tensor_sources import Computed
from checkpoint_converters.gguf_config import ARCHITECTURE
from trtspec.config.mixers.base import MixerSpec

_B = "blk.{i}."
_A = "layers.{i}.attn."

MAMBA_NAMES = {
    _A + "in_proj.weight": _B + "ssm_in.weight",
    _A + "in_proj.bias": _B + "ssm_in.bias",
    _A + "out_proj.weight": _B + "ssm_out.weight",
    _A + "out_proj.bias": _B + "ssm_out.bias",
    _A + "conv.weight": _B + "ssm_conv1d.weight",
    _A + "conv.bias": _B + "ssm_conv1d.bias",
    _A + "a_log": _B + "ssm_a",
    _A + "dt_bias": _B + "ssm_dt.bias",
    _A + "skip": _B + "ssm_d",
    _A + "norm.weight": _B + "ssm_norm.weight",
}


def _vector(whole: TensorHeader, mixer: MixerSpec) -> TensorHeader:
    return Computed.of(whole, (math.prod(whole.shape),), torch.flatten)


def _logarithm(whole: TensorHeader, mixer: MixerSpec) -> TensorHeader:
    return Computed.of(whole, (math.prod(whole.shape),), _log_of_negated)


def _log_of_negated(decay: Tensor) -> Tensor:
    return torch.log(-decay)


def _by_channel(whole: TensorHeader, mixer: MixerSpec) -> TensorHeader:
    return Computed.of(whole, (*whole.shape[:1], 1, *whole.shape[1:]), Tensor.contiguous)


MAMBA_CHANGES = {
    _B + "ssm_a": _logarithm,
    _B + "ssm_d": _vector,
    _B + "ssm_norm.weight": _vector,
    _B + "ssm_conv1d.weight": _by_channel,
}
"""See `GgufNames.changes`: files hold ``-exp(a_log)``, and some tensors in other shapes."""


def has_bias(file: GgufFile, name: str, layers: int) -> bool:
    """Whether a matrix has a bias in any layer."""
    return any(f"blk.{i}.{name}.bias" in file.tensors for i in range(layers))


def mamba_values(file: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json values of Mamba-2.

    Raises:
        CheckpointError: a key is missing or has a value of the wrong type.
    """

    def size(name: str) -> int:
        found: int = file.integer(f"{values[ARCHITECTURE]}.ssm.{name}")
        return found

    heads, inner, layers = size("time_step_rank"), size("inner_size"), values["num_hidden_layers"]
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // max(heads, 1),
        "mamba_expand": inner / values["hidden_size"],
        "mamba_n_groups": size("group_count"),
        "mamba_d_state": size("state_size"),
        "mamba_d_conv": size("conv_kernel"),
        "mamba_conv_bias": has_bias(file, "ssm_conv1d", layers),
        "mamba_proj_bias": has_bias(file, "ssm_in", layers),
        "time_step_limit": [0.0, math.inf],
    }
