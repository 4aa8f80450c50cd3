"""Which of the target's tokens a draft can propose: ``d2t`` tables and token map files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from checkpoint_converters.containers.pickle_files import load_pickle
from checkpoint_converters.containers.safetensors_files import TensorHeader
from trtspec.errors import CheckpointError

_INTEGERS = ("I64", "I32")


def read_d2t(d2t: TensorHeader, t2d: TensorHeader | None, vocab: int) -> Tensor:
    """The target's ids ``[V_d] i64`` from ``d2t``, which holds *offsets*: id = row + d2t[row].

    A table of the ids themselves is refused: by ids out of range or named twice, and by ``t2d``
    (``[V] bool``, the tokens covered) where the checkpoint has one. Raises CheckpointError naming
    row, value and limit.
    """
    if d2t.dtype not in _INTEGERS or len(d2t.shape) != 1:
        raise CheckpointError(
            f"{d2t.file}: d2t is {d2t.dtype} {list(d2t.shape)}; it must be one row of integers"
        )
    stored = d2t.read().long()
    ids = stored + torch.arange(len(stored))
    problem = _problem(ids, vocab)
    absolute = _problem(stored, vocab) is None
    if problem is not None:
        hint = (
            "; its values are valid as they stand, so they look like the ids themselves: "
            "subtract the row number from each"
            if absolute
            else ""
        )
        raise CheckpointError(f"{d2t.file}: d2t holds offsets, and row {problem}{hint}")
    if t2d is not None:
        covered = t2d.read().bool().nonzero().flatten()
        if absolute and _same(covered, stored) and not _same(covered, ids):
            raise CheckpointError(
                f"{d2t.file}: d2t must hold offsets (target id minus row), but t2d shows that it "
                "holds the target ids themselves; subtract the row number from each"
            )
    return ids


def read_token_map(file: Path, vocab: int) -> Tensor:
    """The target's ids ``[V_d] i64`` from a file of them: ``torch.save`` of a list or of a tensor
    (FR-Spec, arXiv 2502.14856). Raises CheckpointError for anything else, for ids out of range and
    for repeated ones."""
    content = load_pickle(file)
    if isinstance(content, list) and all(type(token) is int for token in content):
        content = torch.tensor(content, dtype=torch.int64)
    if not (
        isinstance(content, Tensor)
        and content.dtype in (torch.int64, torch.int32)
        and content.dim() == 1
        and len(content) > 0
    ):
        raise CheckpointError(
            f"{file} is no token map: it must hold a list or a one-dimensional tensor of token ids"
        )
    ids = content.long()
    problem = _problem(ids, vocab)
    if problem is not None:
        raise CheckpointError(f"{file}: entry {problem}")
    return ids


def is_identity(ids: Tensor) -> bool:
    """Whether every id is its own row number."""
    return torch.equal(ids, torch.arange(len(ids)))


def _problem(ids: Tensor, vocab: int) -> str | None:
    """What is wrong with ids ``[V_d]``, beginning with the row; None if nothing is."""
    outside = ((ids < 0) | (ids >= vocab)).nonzero()
    if len(outside):
        row = int(outside[0])
        return f"{row} gives token {int(ids[row])}, the target has tokens 0 to {vocab - 1}"
    order = ids.argsort(stable=True)
    again = (ids[order][1:] == ids[order][:-1]).nonzero()
    if len(again):
        first, second = (int(order[int(again[0]) + step]) for step in (0, 1))
        return f"{second} gives token {int(ids[second])}, as row {first} does"
    return None


def _same(covered: Tensor, ids: Tensor) -> bool:
    return torch.equal(covered, ids.sort().values)
