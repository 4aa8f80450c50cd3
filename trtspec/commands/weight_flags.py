"""The flags for weight storage and products, the same in every program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtspec.config.build_config import ADAPTER_OPTIONS, WEIGHT_OPTIONS
from trtspec.formats.registry import activation_dtypes, format_kinds, weight_group_sizes
from trtspec.llmapi import help_texts
from trtspec.llmapi.help_texts import one_of


def add_weight_flags(add: Callable[..., Any], between: str = "_") -> None:
    """Add a flag for each of `WEIGHT_OPTIONS`, with its words joined by ``between``. ``add``:
    `add_argument` of a parser or group."""
    usual = ", ".join(f"{kind.group_size} for {kind.name}" for kind in format_kinds().values())
    sizes = one_of([*map(str, weight_group_sizes())])
    given: dict[str, dict[str, Any]] = {
        "weight_dtype": {"help": help_texts.weight_dtype()},
        "weight_group_size": {
            "type": int,
            "help": f"input features that share a scale of quantised weights: {sizes}; 0: all "
            f"(default: {usual})",
        },
        "head_weight_dtype": {
            "help": "--weight_dtype of the matrix to the vocabulary (default: the same, 8 bits "
            "where that has fewer)"
        },
        "embedding_weight_dtype": {
            "help": "--weight_dtype of the tables of embeddings (default: floats, or as the "
            "checkpoint stores them); one tied to a head of the same is read out of it"
        },
        "activation_dtype": {
            "help": f"in what quantised weights are multiplied: {one_of(activation_dtypes())}; "
            "auto (default): inputs rounded to 8 bits, else --dtype"
        },
        "few_row_products": {
            "action": "store_true",
            "help": "on CUDA, multiply few rows by kernels of trtspec, which keep quantised "
            "weights; not run on a GPU yet",
        },
    }
    for name in WEIGHT_OPTIONS:
        add(f"--{name.replace('_', between)}", **given[name])


def add_adapter_flags(add: Callable[..., Any], between: str = "_") -> None:
    """Likewise for each of `ADAPTER_OPTIONS`."""
    given: dict[str, dict[str, Any]] = {
        "enable_lora": {
            "action": "store_true",
            "help": "let requests have low-rank adapters (LoRA)",
        },
        "max_loras": {"type": int, "help": "adapters that lie beside the weights (default: 4)"},
        "max_lora_rank": {
            "type": int,
            "help": "rank of the largest adapter, a multiple of 8 (default: 16)",
        },
    }
    for name in ADAPTER_OPTIONS:
        add(f"--{name.replace('_', between)}", **given[name])
