"""Bytes that a model takes, computed from its configuration, and where its weights are placed."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Hashable, Mapping
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from trtspec.config.build_config import BuildConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.model import ModelConfig
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.layer_facts import (
    PassBytes,
    cache_row_bytes,
    matrix_bytes,
    pass_bytes,
)
from trtspec.ops.threads import copy_to_nodes
from trtspec.speculative.registry import draft_kinds

_ALIGNMENT = 64  # of a weight, in bytes
_MEMORY: WeakValueDictionary[Hashable, mmap.mmap] = WeakValueDictionary()
"""Large-page memory of sources whose tensors are alive."""


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype given by name."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    return torch_dtype.itemsize


def kv_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Bytes of all caches per token, in a network of this dtype."""
    return cache_row_bytes(model, getattr(torch, dtype), "paged")


def bytes_per_state(model: ModelConfig, dtype: str) -> int:
    """Bytes of a request's recurrent state, in a network of this dtype; 0 if there is none."""
    return cache_row_bytes(model, getattr(torch, dtype), "slot")


def state_bytes(model: ModelConfig, dtype: str, num_states: int, max_rows: int) -> int:
    """Bytes of that many states, and of the step buffers for calls of that many rows; see
    `KVTensors`."""
    a_row = cache_row_bytes(model, getattr(torch, dtype), "step")
    return num_states * bytes_per_state(model, dtype) + max_rows * a_row


def weight_bytes(model: DraftConfig, formats: NetworkFormats, build: BuildConfig) -> int:
    """Bytes of the weights of a resolved build, without norms and biases, but with experts that a
    pass does not read. ``model`` may also be a target: its config is that of a draft model."""
    matrices = draft_kinds()[model.kind].matrices(model)
    return matrix_bytes(matrices, formats, getattr(torch, build.dtype))


def read_bytes(model: DraftConfig, formats: NetworkFormats, build: BuildConfig) -> PassBytes:
    """Bytes of weights that one pass of a resolved build reads, without norms and biases."""
    matrices = draft_kinds()[model.kind].matrices(model)
    return pass_bytes(matrices, formats, getattr(torch, build.dtype), build.device)


def in_large_pages(
    weights: Mapping[str, Tensor], source: Hashable | None = None
) -> dict[str, Tensor]:
    """Copies of CPU tensors in 2 MiB pages, where the system supports them. A mapped file has small
    pages only, and a processor that reads all weights for each token then spends much of its time
    on address translation. The copies are placed at the memory nodes of the threads that read them
    (`copy_to_nodes`). While tensors of a ``source`` are alive, further requests share their memory,
    so engines of one folder share their weights."""
    sizes = {name: -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for name, tensor in weights.items()}
    if not any(sizes.values()):
        return dict(weights)
    shared = None if source is None else _MEMORY.get(source)
    memory = shared if shared is not None else _large_pages(sum(sizes.values()))
    copies, offset = dict(weights), 0
    held = [name for name, size in sizes.items() if size]
    for name in held:
        tensor = weights[name]
        flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        copies[name] = flat.view(tensor.shape)
        offset += sizes[name]
    if shared is None:
        copy_to_nodes([copies[name] for name in held], [weights[name] for name in held])
    if source is not None:  # filled: before, another thread would read zeros
        _MEMORY[source] = memory
    return copies


def _large_pages(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without such pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
