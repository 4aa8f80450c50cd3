"""NetworkFormats: the weight format of each layer of a network."""

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
    """The formats of a network's weights, looked up while its layers are built.

    layers: the format of linear layers other than heads. head: that of the network's own heads.
    target_head: that of the target's head, which a draft may borrow; for a target, its own.
    storage: the quantised weights of the checkpoint that are kept, whose formats come first. kept,
    kept_heads: the format of each of their schemes, in layers, and in heads and embeddings. within:
    prefix of the part that is being built, as checkpoints name it: ``layers.0.attn.``. embedding,
    target_embedding: the formats of the network's and the target's embedding; None: floats of the
    network's dtype. keeps_rows: whether a quantised embedding is kept too.
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
        """The same format for everything."""
        return cls(weights, weights, weights)

    def at(self, name: str) -> NetworkFormats:
        """The formats within a part, by its name in what is being built."""
        return replace(self, within=f"{self.within}{name}.")

    def of(self, outputs: Mapping[str, int]) -> WeightFormat:
        """The format of a layer whose outputs are those of one or several weights, in this order.
        ``outputs``: how many each has, by name without ``.weight``."""
        return joined((count, self._one(name, self.layers)) for name, count in outputs.items())

    def of_head(self, name: str) -> WeightFormat:
        """The format of a head of the network's own, by the name of its weight."""
        return self._kept(name, self.kept_heads) or self.head

    def of_embedding(self, name: str) -> WeightFormat | None:
        """The format of the network's own embedding, by the name of its weight; None: floats."""
        kept = self._kept(name, self.kept_heads) if self.keeps_rows else None
        return kept or self.embedding

    def of_experts(self, count: int, parts: Sequence[str]) -> WeightFormat:
        """The format that the weights ``{expert}.{part}`` of ``count`` experts share, with groups
        small enough for all of them.

        Raises:
            ConfigError: the checkpoint has them in several formats.
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
        """The name of the quantised format; of the layers' format if nothing is quantised."""
        if self.storage is not None:
            return self.storage.name
        return next((each.name for each in self._own if each.is_rounded), self.layers.name)

    @property
    def is_rounded(self) -> bool:
        """Whether any weight of the network's own may be quantised."""
        return self.storage is not None or any(each.is_rounded for each in self._own)

    def describe(self, dtype: str) -> str:
        """A short description of a network of ``dtype`` with these formats."""
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
    """Whether an embedding is read from the head that it is tied to, which is of floats or
    quantised in the embedding's own format; otherwise it is a table of its own."""
    return tied and (not head.is_rounded or head == embedding)


def _differences(kinds: Sequence[WeightFormat]) -> str:
    """The names of formats, with the traits that tell those of the same name apart."""
    told = []
    for kind in kinds:
        others = [set(each.traits) for each in kinds if each.name == kind.name]
        own = [trait for trait in kind.traits if trait not in set.intersection(*others)]
        told.append(f"{kind.name} with {' and '.join(own)}" if own else kind.name)
    return ", ".join(told)
