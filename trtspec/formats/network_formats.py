"""NetworkFormats: which weight format each layer of a network has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from trtspec.config.storage import NetworkStorage, WeightStorage
from trtspec.errors import ConfigError
from trtspec.formats.base import WeightFormat
from trtspec.formats.joined import joined


@dataclass(frozen=True)
class NetworkFormats:
    """The formats of a network's linear layers, asked for where a layer is built.

    layers: of all but heads. head: of the network's own heads. target_head: of the head of its
    target, which a draft may borrow (of a target, its own). storage: how weights lie in the
    checkpoint that are kept so, whatever the others are; kept, kept_heads: the formats of these
    schemes, in layers, and in heads and tables. within: the beginning of the names, as a checkpoint
    has them, of what is built: ``layers.0.attn.``. embedding, target_embedding: of tables of
    embeddings, its own and its target's; None: floats of the network's dtype. keeps_rows: whether
    these, too, are kept as storage says.
    """

    layers: WeightFormat
    head: WeightFormat
    target_head: WeightFormat
    storage: NetworkStorage | None = None
    kept: Mapping[WeightStorage, WeightFormat] = field(default_factory=dict)
    kept_heads: Mapping[WeightStorage, WeightFormat] = field(default_factory=dict)
    within: str = ""
    embedding: WeightFormat | None = None
    target_embedding: WeightFormat | None = None
    keeps_rows: bool = False

    @classmethod
    def uniform(cls, weights: WeightFormat) -> NetworkFormats:
        """One format for all parts."""
        return cls(weights, weights, weights)

    def at(self, name: str) -> NetworkFormats:
        """Those of a part of what is built."""
        return replace(self, within=f"{self.within}{name}.")

    def of(self, outputs: Mapping[str, int]) -> WeightFormat:
        """That of a layer which is made of these weights, by name less ``.weight``, one behind the
        other along its outputs, with so many outputs each."""
        return joined((count, self._one(name, self.layers)) for name, count in outputs.items())

    def of_head(self, name: str) -> WeightFormat:
        """That of a head of its own, which is made of this weight."""
        return self._kept(name, self.kept_heads) or self.head

    def of_embedding(self, name: str) -> WeightFormat | None:
        """That of a table of embeddings of its own, which is made of this weight; None: floats."""
        kept = self._kept(name, self.kept_heads) if self.keeps_rows else None
        return kept or self.embedding

    def of_experts(self, count: int, parts: Sequence[str]) -> WeightFormat:
        """That of these weights of so many experts, named ``{expert}.{part}``, which is one; its
        groups are the smallest that any of them has.

        Raises:
            ConfigError: the checkpoint has several.
        """
        names = [f"{expert}.{part}" for expert in range(count) for part in parts]
        distinct = dict.fromkeys(self._one(name, self.layers) for name in names)
        # Weights of different K fit one format so, though those whose groups they do not fill have
        # one scale.
        size = gcd(*(kind.group_size for kind in distinct))
        found = dict.fromkeys(kind.in_groups(size) for kind in distinct)
        if len(found) > 1:
            raise ConfigError(
                f"the experts of {self.within.removesuffix('.')} have weights of "
                f"{len(found)} formats ({_differences(list(found))}), which are not multiplied "
                "together; keep them in floats (weight_dtype bfloat16)"
            )
        return next(iter(found))

    @property
    def name(self) -> str:
        """That of the rounded weights."""
        if self.storage is not None:
            return self.storage.name
        return next((each.name for each in self._own if each.is_rounded), self.layers.name)

    @property
    def is_rounded(self) -> bool:
        """Whether any layer or table of its own may have rounded weights."""
        return self.storage is not None or any(each.is_rounded for each in self._own)

    def describe(self, dtype: str) -> str:
        """A network of ``dtype`` with such weights, in a few words."""
        said = self.layers.describe(dtype)
        if self.head != self.layers:
            said = f"{said}, heads {self.head.describe(dtype)}"
        if self.embedding is not None and self.embedding.is_rounded:
            said = f"{said}, embeddings {self.embedding.name}"
        if self.storage is None:
            return said
        kept = (self.kept[scheme].describe(dtype) for scheme in self.storage.schemes)
        return f"{said}, as stored {', '.join(kept)}"

    def _one(self, name: str, otherwise: WeightFormat) -> WeightFormat:
        return self._kept(name, self.kept) or otherwise

    def _kept(self, name: str, kept: Mapping[WeightStorage, WeightFormat]) -> WeightFormat | None:
        scheme = self.storage.scheme(self.within + name) if self.storage is not None else None
        return None if scheme is None else kept[scheme]

    @property
    def _own(self) -> list[WeightFormat]:
        rows = [] if self.embedding is None else [self.embedding]
        return [self.layers, self.head, *rows]


def reads_head(tied: bool, head: WeightFormat, embedding: WeightFormat | None) -> bool:
    """Whether rows of an embedding are read out of the head that it is tied to: where these are
    floats, or rounded as the embedding is to be."""
    return tied and (not head.is_rounded or head == embedding)


def _differences(kinds: Sequence[WeightFormat]) -> str:
    """Formats by their names, and by what not all of a name have."""
    told = []
    for kind in kinds:
        others = [set(each.traits) for each in kinds if each.name == kind.name]
        own = [trait for trait in kind.traits if trait not in set.intersection(*others)]
        told.append(f"{kind.name} with {' and '.join(own)}" if own else kind.name)
    return ", ".join(told)
