"""The part of the target's vocabulary that a draft may propose, chosen from the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.errors import ConfigError

COVERAGE = 0.995
"""Share of the data's tokens that a chosen part has to cover."""
_STEP = 1024
_WORTH = 0.5


@dataclass(frozen=True)
class DraftVocabulary:
    """``ids [n] i64``, ascending; None: all. ``coverage``: share of the data's tokens in it."""

    ids: Tensor | None
    coverage: float

    def size(self, vocab_size: int) -> int:
        return vocab_size if self.ids is None else len(self.ids)


def choose(
    texts: Iterable[Tensor], vocab_size: int, always: Sequence[int], size: int | None
) -> DraftVocabulary:
    """The most frequent tokens of ``texts`` (``[T] i64`` each) and those that are ``always`` in it.

    ``size``: how many; None: the fewest multiple of 1,024 that covers 99.5 % of the data, or all
    where that is more than half of the vocabulary and saves little; 0: all.

    Raises:
        ConfigError: ``size`` is not between ``always`` and the target's vocabulary.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for ids in texts:
        counts += torch.bincount(ids, minlength=vocab_size)
    total = max(1, int(counts.sum()))
    must = sorted(set(always))
    if size is not None and size != 0 and not len(must) < size <= vocab_size:
        raise ConfigError(
            f"--draft_vocab_size {size} must be above {len(must)} and at most the target's "
            f"{vocab_size} tokens; 0: all of them"
        )
    order_counts = counts.clone()
    order_counts[must] = total + 1
    # Stable, so that of equal counts the lower id comes first.
    order = torch.sort(order_counts, descending=True, stable=True).indices
    covered = counts[order].cumsum(0).float() / total
    if size is None:
        enough = int((covered < COVERAGE).sum()) + 1
        size = min(-(-enough // _STEP) * _STEP, vocab_size)
        if size > _WORTH * vocab_size:
            size = vocab_size
    if size in (0, vocab_size):
        return DraftVocabulary(None, 1.0)
    return DraftVocabulary(order[:size].sort().values, float(covered[size - 1]))
