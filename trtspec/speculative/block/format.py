"""BlockFormat: what a variant's checkpoints have beside what all of them have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.speculative.block.shape import BlockConfig

Said = Callable[[str], Any]
"""What config.json says by a key, in ``dflash_config`` or else outside of it; None if nothing."""
Tensors = Iterator[tuple[str, str, tuple[int, ...]]]
"""(common name, internal name, shape) of weights."""


def _no_fields(said: Said, headers: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


def _no_tensors(config: Any) -> Tensors:
    return iter(())


@dataclass(frozen=True)
class BlockFormat:
    """How drafts of a variant are known and read.

    method: which runs them. config: the class of their shape. architectures: what the names of
    theirs match. type: what speculators calls them, and the trainers' ``projector_type``. rank: see
    `DraftReader`. keys: of ``dflash_config``, those that only this variant has. fields: what
    config.json and the tensors' headers say of the config's own fields; ValueError with the reason
    for what is not run. tensors: its own, of a config. of_tokens: internal names of those that have
    a row for each token of the head, as the head itself. is_one: whether what matches is one; a
    network without the variant's parts is none.
    """

    method: str
    config: type[BlockConfig]
    architectures: str
    type: str
    rank: int = 45
    keys: frozenset[str] = frozenset()
    fields: Callable[[Said, Mapping[str, Any]], Mapping[str, Any]] = _no_fields
    tensors: Callable[[Any], Tensors] = _no_tensors
    of_tokens: tuple[str, ...] = ()
    is_one: Callable[[Said], bool] = lambda said: True
