"""LayerPart: what every mixer and every feed-forward part of a layer's spec says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Self

from trtspec.errors import ConfigError


class LayerPart:
    """A part as plain data: its subclasses are strict, frozen dataclasses, each with a ``kind`` by
    which engine folders name it. Whoever reads a spec asks the questions of `MixerSpec` and
    `FeedForwardSpec`, so that only a part's own files know which one it is; where one kind alone
    will do, `of` says so.

    title, words: what all these parts are, and those of a kind, in messages. kept_float: names (see
    `layer_tensors`) of matrices that are in the network's dtype, whatever the format of the others.
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
        """Those that there are, by kind."""
        return cls._kinds

    @classmethod
    def maybe(cls, part: LayerPart | None) -> Self | None:
        """A part that is of this kind; None for any other."""
        return part if isinstance(part, cls) else None

    @classmethod
    def of(cls, part: LayerPart | None) -> Self:
        """A part that must be of this kind.

        Raises:
            ConfigError: it is another.
        """
        if isinstance(part, cls):
            return part
        found = "none" if part is None else part.kind
        raise ConfigError(f"a layer has {cls.title} {found} where only {cls.kind} can be")

    def sharded(self, ranks: int) -> Self:
        """What one of so many ranks computes of it: the outputs of all ranks sum up to its own. A
        tensor that is smaller there (see `layer_tensors`) is shared out, and has the same number of
        dimensions; the others all ranks have.

        Raises:
            ConfigError: it is not shared out evenly, or not at all.
        """
        raise ConfigError(
            f"{self.words} are not split over ranks in this version; leave tensor_parallel_size out"
        )

    def sections(self, name: str) -> tuple[int, ...]:
        """Rows of what lies side by side in one of its tensors, each of which ranks share out by
        itself; empty where that is one thing."""
        return ()

    def unnamed(self) -> ConfigError:
        """Of a part whose tensors have no names."""
        return ConfigError(f"the tensors of {self.title} {self.kind} have no names in this version")


def share(name: str, size: int, ranks: int) -> int:
    """That of one rank; ConfigError where ranks do not divide it."""
    if size % ranks:
        raise ConfigError(
            f"{name} is {size}, which tensor_parallel_size {ranks} does not divide; choose a "
            "number of ranks that does"
        )
    return size // ranks


def check_sizes(spec: object, *names: str) -> None:
    """ConfigError for a size below 1."""
    for name in names:
        if getattr(spec, name) < 1:
            raise ConfigError(f"{name} is {getattr(spec, name)}; it must be at least 1")
