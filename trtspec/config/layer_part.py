"""LayerPart: the base of all mixer and feed-forward specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Self

from trtspec.errors import ConfigError


class LayerPart:
    """A part of a layer as plain data. Subclasses are strict, frozen dataclasses, each with a
    ``kind`` under which engine folders store it. Readers of a spec use the interface of `MixerSpec`
    and `FeedForwardSpec`, so that only a part's own files know which one it is; code that supports
    a single kind calls `of`.

    title, words: how messages name such parts in general, and this kind. kept_float: names (see
    `layer_tensors`) of matrices that stay in the network's dtype, whatever the weight format.
    """

    kind: str
    title: ClassVar[str]
    words: ClassVar[str]
    kept_float: ClassVar[frozenset[str]] = frozenset()
    _kinds: ClassVar[dict[str, type[LayerPart]]]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            cls._kinds[cls.kind] = cls
        else:
            cls._kinds = {}

    @classmethod
    def kinds(cls) -> Mapping[str, type[LayerPart]]:
        """All known parts, by kind."""
        return cls._kinds

    @classmethod
    def maybe(cls, part: LayerPart | None) -> Self | None:
        """The part if it is of this kind, else None."""
        return part if isinstance(part, cls) else None

    @classmethod
    def of(cls, part: LayerPart | None) -> Self:
        """The part, which must be of this kind.

        Raises:
            ConfigError: it is another.
        """
        if isinstance(part, cls):
            return part
        found = "none" if part is None else part.kind
        raise ConfigError(f"a layer has {cls.title} {found} where only {cls.kind} can be")

    def sharded(self, ranks: int) -> Self:
        """One rank's share of the part; the outputs of all ranks sum up to the whole. A tensor that
        is smaller there (see `layer_tensors`) is split and keeps its number of dimensions; the
        others are replicated.

        Raises:
            ConfigError: the part cannot be split, or not evenly.
        """
        raise ConfigError(
            f"{self.words} are not split over ranks in this version; leave tensor_parallel_size out"
        )

    def sections(self, name: str) -> tuple[int, ...]:
        """Row counts of what is fused in one of its tensors, each of which is split separately;
        empty if nothing is fused."""
        return ()

    def unnamed(self) -> ConfigError:
        """The error for a part whose tensors have no names."""
        return ConfigError(f"the tensors of {self.title} {self.kind} have no names in this version")


def share(name: str, size: int, ranks: int) -> int:
    """One rank's share of a size; ConfigError if the ranks do not divide it."""
    if size % ranks:
        raise ConfigError(
            f"{name} is {size}, which tensor_parallel_size {ranks} does not divide; choose a "
            "number of ranks that does"
        )
    return size // ranks


def check_sizes(spec: object, *names: str) -> None:
    """Raise ConfigError for a size below 1."""
    for name in names:
        if getattr(spec, name) < 1:
            raise ConfigError(f"{name} is {getattr(spec, name)}; it must be at least 1")
