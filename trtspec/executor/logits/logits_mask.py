"""LogitsMask: changes to the logits of a request's rows, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.errors import EngineError
from trtspec.ops.logits_mask import BITS, MaskColumns


@dataclass(frozen=True)
class LogitsMask:
    """Changes to R rows of logits that do not depend on them; all tensors are on the host.

    biases: token ids ``i64 [n]`` and what is added to their logits ``f32 [n]``, in every row.
    banned: rows ``i64 [m]`` and the token ids ``i64 [m]`` that are banned there. allowed: ``i32 [R,
    W]``: bit v % 32 of word v // 32 says whether token v is allowed in a row; ids without a bit are
    not (see `trtspec.ops.logits_mask.pack_bits`). None: no change of that kind.
    """

    biases: tuple[Tensor, Tensor] | None = None
    banned: tuple[Tensor, Tensor] | None = None
    allowed: Tensor | None = None


def columns_of(
    masks: Sequence[tuple[slice, LogitsMask]], rows: int, vocab_size: int
) -> MaskColumns | None:
    """The mask of a step's rows, from the masks of the rows at these places, in order; where
    several apply to a row, all do. None: no change.

    EngineError for a mask with more or fewer rows.
    """
    allowed: Tensor | None = None
    biases: list[tuple[Tensor, Tensor, Tensor]] = []
    for own, mask in masks:
        count = own.stop - own.start
        if mask.biases is not None:
            ids, values = mask.biases
            places = torch.arange(own.start, own.stop).repeat_interleave(len(ids))
            biases.append((places, ids.repeat(count), values.repeat(count)))
        if mask.banned is not None and len(mask.banned[0]):
            places, ids = mask.banned
            if int(places.min()) < 0 or int(places.max()) >= count:
                raise EngineError(
                    f"a processor bans tokens in rows {int(places.min())} to {int(places.max())}, "
                    f"but its request has rows 0 to {count - 1}"
                )
            biases.append((places + own.start, ids, torch.full((len(ids),), -torch.inf)))
        if mask.allowed is not None:
            if len(mask.allowed) != count:
                raise EngineError(
                    f"a processor says what is allowed in {len(mask.allowed)} rows, but its "
                    f"request has {count}"
                )
            words = -(-vocab_size // BITS)
            if allowed is None:
                allowed = torch.full((rows, words), -1, dtype=torch.int32)
            given = min(words, mask.allowed.shape[1])
            allowed[own, :given] &= mask.allowed[:, :given]
            allowed[own, given:] = 0
    if not biases:
        return None if allowed is None else MaskColumns(allowed)
    places, ids, values = (torch.cat(parts) for parts in zip(*biases, strict=True))
    # Rows and ids have less than 32 bits each; equal ones stay in their order.
    order = torch.argsort(places << 32 | ids, stable=True)
    return MaskColumns(allowed, places[order], ids[order], values[order])
