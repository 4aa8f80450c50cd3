"""Which of the target's tokens a draft can propose: ``d2t`` tables and token map files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checkpoint_converters.containers.pickle_files import load_pickle
from checkpoint_converters.containers.safetensors_files import TensorHeader
from trtspec.errors import CheckpointError

_INTEGERS = ("I64", "I32")
_RARE = 8
"""A table is doubted if it has this many times fewer repeated offsets, or runs of neighbours, than
a random choice of tokens. A choice by frequency repeats more offsets and is still scattered."""
_ENOUGH = 2
"""Repeated offsets that must be expected before their absence means anything."""


def read_d2t(d2t: TensorHeader, t2d: TensorHeader | None, vocab: int) -> Tensor:
    """The target's ids ``[V_d] i64`` from ``d2t``, which holds *offsets*: id = row + d2t[row].

    A table of ids themselves is refused. It is recognised by ids that are out of range or repeated,
    and by ``t2d`` (``[V]``, true for the tokens covered) if the checkpoint has one. If the head
    covers part of the vocabulary, both must cover the same tokens, because a head is trained with
    one and drafts with the other. Raises CheckpointError naming row, value and limit.
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
    covered = _covered(t2d)
    if len(ids) < vocab and covered is not None and not _same(covered, ids):
        if absolute and _same(covered, stored):
            raise CheckpointError(
                f"{d2t.file}: d2t must hold offsets (target id minus row), but t2d shows that it "
                "holds the target ids themselves; subtract the row number from each"
            )
        raise CheckpointError(f"{d2t.file}: {_contradiction(ids, covered, vocab)}")
    return ids


def doubts_about(ids: Tensor, t2d: TensorHeader | None, vocab: int) -> tuple[str, ...]:
    """What is possible but unlikely about the ids of `read_d2t`, in sentences with the remedy."""
    if len(ids) == vocab:
        return ()
    covered, doubts = _covered(t2d), []
    if t2d is not None and covered is None:
        doubts.append(
            f"t2d is {t2d.dtype} with other values than 0 and 1, so it is no mask of the tokens "
            "that d2t covers, and d2t could not be checked by it"
        )
    if is_identity(ids):
        doubts.append(
            f"d2t is all zeros: its {len(ids)} rows are the target's first {len(ids)} tokens of "
            f"{vocab}, so the draft vocabulary was possibly never calibrated, and drafts are "
            "accepted seldom; save the d2t that the head was trained with (target id minus row)"
        )
    elif covered is None and _is_block(ids, vocab):
        doubts.append(
            f"the {len(ids)} rows of d2t are all but one block of the target's {vocab} tokens, "
            f"{int(ids.min())} to {int(ids.max())}, where tokens chosen for how often they occur "
            "lie scattered: if the head was trained for others, drafts are accepted seldom; "
            "save the d2t that it was trained with (target id minus row)"
        )
    elif covered is None and (count := _as_ids(ids - torch.arange(len(ids)), vocab)):
        doubts.append(
            f"d2t holds {count} different token ids of {vocab}, where offsets (target id minus "
            "row) would repeat: if these are the ids that the rows stand for, drafts are accepted "
            "seldom; subtract the row number from each"
        )
    return tuple(doubts)


def read_token_map(file: Path, vocab: int) -> Tensor:
    """The target's ids ``[V_d] i64`` from a file of ids: ``torch.save`` of a list or tensor
    (FR-Spec, arXiv 2502.14856), a JSON list (``.json``), or numbers separated by spaces (``.txt``).
    Raises CheckpointError for anything else, and for ids out of range or repeated."""
    content = _read_list(file)
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
        as_offsets = ids + torch.arange(len(ids))
        hint = (
            "; its values never fall and are valid as offsets, so they look like a d2t: add the "
            "entry number to each"
            if bool((ids.diff() >= 0).all()) and _problem(as_offsets, vocab) is None
            else ""
        )
        raise CheckpointError(f"{file}: entry {problem}{hint}")
    return ids


def _read_list(file: Path) -> Any:
    """The contents of a file of ids, by its suffix."""
    if file.suffix not in (".json", ".txt"):
        return load_pickle(file)
    try:
        text = file.read_text(encoding="utf-8")
        return json.loads(text) if file.suffix == ".json" else [int(each) for each in text.split()]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is no token map, and cannot be read: {error}") from error


def require_order(order: TensorHeader, vocab: int) -> None:
    """Raise CheckpointError unless a tensor ``[V]`` is a permutation of the vocabulary."""
    if order.dtype not in _INTEGERS or order.shape != (vocab,):
        raise CheckpointError(
            f"{order.file}: {order.name} is {order.dtype} {list(order.shape)}; it must be one row "
            f"of integers, the target's {vocab} tokens in some order"
        )
    problem = _problem(order.read().long(), vocab)
    if problem is not None:
        raise CheckpointError(
            f"{order.file}: {order.name} must hold each token once, and row {problem}; get the "
            "file again"
        )


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


def _is_block(ids: Tensor, vocab: int) -> bool:
    """Whether ids ``[V_d]`` form one run of neighbours, or far fewer runs than by chance."""
    count = len(ids)
    runs = 1 + int((ids.sort().values.diff() > 1).sum())
    return _RARE * runs <= count * (vocab - count + 1) / vocab


def _as_ids(stored: Tensor, vocab: int) -> int:
    """The number of values ``[V_d]`` in a table if they are ids; 0 if they are offsets, which
    repeat whenever a token's neighbour is covered too, as in any real vocabulary. Repeats at the
    end are padding."""
    last = (stored != stored[-1:]).nonzero()
    values = stored[: int(last[-1]) + 2] if len(last) else stored[:1]
    if bool(((values < 0) | (values >= vocab)).any()):
        return 0
    count, different = len(values), len(torch.unique(values))
    expected = count * (count - 1) / vocab
    is_rare = expected >= _ENOUGH and _RARE * (count - different) < expected
    return different if is_rare else 0


def is_identity(ids: Tensor) -> bool:
    """Whether every id equals its row number."""
    return torch.equal(ids, torch.arange(len(ids)))


def _covered(t2d: TensorHeader | None) -> Tensor | None:
    """The ids ``[n]`` set in a mask, ascending; None if there are none, or no mask."""
    if t2d is None:
        return None
    mask = t2d.read()
    if bool(((mask != 0) & (mask != 1)).any()):
        return None
    return mask.nonzero().flatten()


def _contradiction(ids: Tensor, covered: Tensor, vocab: int) -> str:
    """How the tokens of d2t and of t2d differ, with both counts."""
    masked = torch.zeros(vocab, dtype=torch.bool).index_fill(0, covered, True)
    lacking = (~masked[ids]).nonzero().flatten()
    which = f"d2t covers {len(ids)} tokens, t2d {len(covered)}"
    if len(lacking):
        row = int(lacking[0])
        which += (
            f", and {len(lacking)} of d2t's are not among them, the first of them token "
            f"{int(ids[row])} of row {row}"
        )
    if is_identity(ids):
        which += "; d2t is all zeros, as before a draft vocabulary is chosen"
    return (
        f"{which}: save the d2t (target id minus row) and the t2d that the head was trained with; "
        "if d2t is right, leave t2d out"
    )


def _same(covered: Tensor, ids: Tensor) -> bool:
    return torch.equal(covered, ids.sort().values)
