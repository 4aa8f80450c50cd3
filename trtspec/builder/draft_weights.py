"""Detects drafts that cannot work with any target because their weights are damaged or
untrained."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from checkpoint_converters import DraftCheckpoint
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError

_BOTTLENECKS = ("head.weight", "fc.weight")
"""Matrices that everything passes through: if all their rows are equal, they carry no information.
Other matrices may be zero, as those that add to a residual are before training."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def require_weights(found: DraftCheckpoint, target_dir: Path) -> None:
    """Read every weight of a draft, one at a time, and refuse those with which no draft would ever
    be accepted. A target that drafts for itself is not read again.

    Raises:
        CheckpointError: a tensor has values that are not finite, a matrix that everything passes
            through repeats one row, or a tensor cannot be read.
    """
    if found.path == target_dir and isinstance(found.config, ModelConfig):
        return
    for name in found.tensors:
        header = found.tensors.headers[name]
        tensor = header.read()
        if tensor.dtype not in _FLOATS:
            continue
        where = f"{header.file}: {header.name} {list(header.shape)}"
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise CheckpointError(
                f"{where} has {bad} of {tensor.numel()} values that are no finite numbers, so "
                "no draft would be accepted; get the file again, or an earlier checkpoint of its "
                "training"
            )
        if name.endswith(_BOTTLENECKS) and _is_one_row(tensor):
            value = "zeros" if not bool(tensor.any()) else "one row over and over"
            raise CheckpointError(
                f"{where} holds {value}, so no draft would be accepted: it was never trained, "
                "or was damaged when it was saved; get the file again, or train the draft"
            )


def _is_one_row(matrix: Tensor) -> bool:
    """Whether all rows of a matrix ``[N, K]`` are equal; a single row does not count."""
    return matrix.dim() == 2 and len(matrix) > 1 and bool((matrix == matrix[:1]).all())
