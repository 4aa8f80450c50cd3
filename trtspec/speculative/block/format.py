"""BlockFormat: what a variant's checkpoints have in addition to the common format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.speculative.block.shape import BlockConfig

Said = Callable[[str], Any]
"""A value of config.json by key, from ``dflash_config`` or the top level; None if there is none."""
Tensors = Iterator[tuple[str, str, tuple[int, ...]]]
"""(common name, internal name, shape) of weights."""


def _no_fields(said: Said, headers: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


def _no_tensors(config: Any) -> Tensors:
    return iter(())


@dataclass(frozen=True)
class BlockFormat:
    """How drafts of a variant are recognised and read.

    method: the one that runs them. config: the class of their shape. architectures: a pattern for
    their names. type: the name in speculators, and the trainers' ``projector_type``. rank: see
    `DraftReader`. keys: those of ``dflash_config`` that only this variant has. fields: values of
    the config's own fields from config.json and the tensors' headers; ValueError with the reason
    for what is unsupported. tensors: its own, given a config. of_tokens: internal names of tensors
    with a row for each token of the head. is_one: whether a match is really one; a network without
    the variant's parts is not.
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
