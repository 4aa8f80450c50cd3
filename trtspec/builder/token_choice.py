"""Chooses the part of the target's vocabulary that a draft may propose, by counting tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.errors import ConfigError

_STEP = 1024
_AGREEMENT = 0.75
"""Assumed share of positions at which a draft with the full vocabulary predicts the target's next
token."""


@dataclass(frozen=True)
class DraftVocabulary:
    """``ids [n] i64``, ascending; None: all. ``coverage``: the share of a text's tokens that are
    included, estimated by cross-validation between two halves of the data."""

    ids: Tensor | None
    coverage: float

    def size(self, vocab_size: int) -> int:
        return vocab_size if self.ids is None else len(self.ids)


@dataclass(frozen=True)
class DraftCost:
    """Weights read: by a pass of the target, by a draft's body, and per row of its head; and the
    passes of a draft of ``depth`` tokens."""

    target: float
    body: float
    row: int
    depth: int

    def speed(self, size: int, coverage: float) -> float:
        """Tokens per target pass time, if time is proportional to weights read: a chain draft that
        is right in 3 of 4 cases at every position where its vocabulary has the token."""
        right = _AGREEMENT * coverage
        length = sum(right**position for position in range(self.depth + 1))
        return length / (1 + self.depth * (self.body + size * self.row) / self.target)


def choose(
    texts: Iterable[Tensor],
    vocab_size: int,
    always: Sequence[int],
    size: int | None,
    cost: DraftCost,
    option: str = "--draft_vocab_size",
) -> DraftVocabulary:
    """The most frequent tokens of ``texts`` (``[T] i64`` each), lower ids first among equals, and
    the tokens in ``always``.

    ``size``: how many; None: the multiple of 1,024, or all, with which drafts are fastest by
    ``cost``; 0: all. ``option``: the name of the option, for messages.

    Raises:
        ConfigError: ``size`` is not between ``always`` and the target's vocabulary.
    """
    halves = torch.zeros(2, vocab_size, dtype=torch.int64)
    for number, ids in enumerate(texts):
        halves[number % 2] += torch.bincount(ids, minlength=vocab_size)
    must = sorted(set(always))
    if size is not None and size != 0 and not len(must) < size <= vocab_size:
        raise ConfigError(
            f"{option} {size} must be above {len(must)} and at most the target's "
            f"{vocab_size} tokens; 0: all of them"
        )
    first, second = halves
    # Measured on the texts that it was chosen from, a part looks better than it is.
    covered = (_covered(first, second, must) + _covered(second, first, must)) / 2
    if size is None:
        sizes = [*range(_STEP, vocab_size, _STEP), vocab_size]
        shares = covered.tolist()
        size = max(sizes, key=lambda n: cost.speed(n, shares[n - 1]))
    if size in (0, vocab_size):
        return DraftVocabulary(None, 1.0)
    chosen = _ranked(halves.sum(0), must)[:size].sort().values
    return DraftVocabulary(chosen, float(covered[size - 1]))


def _ranked(counts: Tensor, must: Sequence[int]) -> Tensor:
    """Ids by frequency, those in ``must`` first."""
    first = counts.clone()
    first[list(must)] = counts.sum() + 1
    return torch.sort(first, descending=True, stable=True).indices


def _covered(chosen_by: Tensor, judged_by: Tensor, must: Sequence[int]) -> Tensor:
    """Share ``[V] f32`` of the second counts covered by the best n of the first, n from 1."""
    total = judged_by.sum().clamp_min(1)
    shares: Tensor = judged_by[_ranked(chosen_by, must)].cumsum(0).float() / total
    return shares
