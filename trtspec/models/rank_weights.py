"""RankWeights: what one rank reads from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from trtspec.config.draft import DraftConfig
from trtspec.config.feed_forwards.experts import EXPERTS
from trtspec.config.layer_tensors import EMBEDDING, HEAD, model_tensors
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import Shape
from trtspec.config.quantised import QuantisedTensor, Weight, Weights
from trtspec.errors import CheckpointError
from trtspec.models.feed_forwards.experts import FIRST_EXPERT
from trtspec.models.ranks import RANK

C = TypeVar("C", bound=DraftConfig)

_WEIGHT, _BIAS = ".weight", ".bias"


class _Place(NamedTuple):
    """One rank of several."""

    rank: int
    ranks: int


@dataclass(frozen=True)
class _Cut:
    """A rank's part of a tensor: runs along ``dim``, each with a first index and a size."""

    dim: int
    runs: tuple[tuple[int, int], ...]
    whole: int

    @classmethod
    def of(
        cls, whole: Shape, own: Shape, place: _Place, sections: Sequence[tuple[int, int]]
    ) -> _Cut | None:
        """The part given a tensor's shapes in the model and on a rank; None: replicated. Several
        ranks may have the same part, if there are few key heads. ``sections``: sizes in the model
        and on a rank of what is fused in it; empty: nothing is fused."""
        if whole == own:
            return None
        (dim,) = (i for i, sizes in enumerate(zip(whole, own, strict=True)) if len(set(sizes)) > 1)
        runs, begin = [], 0
        for of, size in sections or ((whole[dim], own[dim]),):
            part = place.rank * (of // size) // place.ranks
            runs.append((begin + part * size, size))
            begin += of
        return cls(dim, tuple(runs), whole[dim])

    @classmethod
    def of_vocabulary(cls, tokens: int, rows: int, rank: int) -> _Cut:
        """The part of a matrix with a row per token, evenly split."""
        return cls(0, ((rank * rows, rows),), tokens)

    def taken(self, tensor: Tensor, dim: int) -> Tensor:
        """The part along that dimension; indices beyond the end repeat the last one."""
        if len(self.runs) == 1 and sum(self.runs[0]) <= self.whole:
            return tensor.narrow(dim, *self.runs[0])
        places = [torch.arange(start, start + size) for start, size in self.runs]
        return tensor.index_select(dim, torch.cat(places).clamp(max=self.whole - 1))

    def of_weight(self, weight: Weight, name: str) -> Weight:
        """The part, of a quantised weight with all that belongs to it."""
        if not isinstance(weight, QuantisedTensor):
            return self.taken(weight, self.dim)
        if self.dim == 0:
            return weight.with_rows(lambda part: self.taken(part, 0))
        if weight.permutation is not None:
            own = sum(size for _, size in self.runs)
            raise CheckpointError(
                f"{name}: {self.whole} inputs in an order of their own (act-order), of which a "
                f"rank would have {own}, are not split in this version; keep the weights in floats "
                "(weight_dtype)"
            )
        factors = weight.input_scales

        def grouped(part: Tensor | None) -> Tensor | None:
            return None if part is None else self._grouped(part, name)

        return replace(
            weight,
            values=self.taken(weight.values.view(torch.int8), 1).view(weight.values.dtype),
            scales=self._grouped(weight.scales, name),
            zero_points=grouped(weight.zero_points),
            minima=grouped(weight.minima),
            input_scales=None if factors is None else self.taken(factors, 0),
        )

    def _grouped(self, tensor: Tensor, name: str) -> Tensor:
        """Of scales, zero points or minima ``[n, G]`` those of the part's inputs."""
        if tensor.shape[1] == 1:
            return tensor
        size = self.whole // tensor.shape[1]
        parts = []
        for start, count in self.runs:
            if start % size or count % size:
                raise CheckpointError(
                    f"{name}: groups of {size} inputs do not divide the {count} inputs of a rank; "
                    "choose another tensor_parallel_size, or weights in floats (weight_dtype)"
                )
            parts.append(tensor.narrow(1, start // size, count // size))
        return torch.cat(parts, 1)


class Source(Protocol):
    """A checkpoint by internal names, of a target or of a draft."""

    @property
    def config(self) -> DraftConfig: ...

    @property
    def tensors(self) -> Weights: ...


class RankWeights(Generic[C]):
    """A checkpoint as rank ``rank`` reads it, for the network that ``config`` describes: each
    decoder tensor that is smaller there is cut along the dimension that differs, and experts are
    counted from the rank's first one; all others are replicated. Biases that would be summed over
    the ranks are kept on the first rank, and zero on the others."""

    def __init__(self, checkpoint: Source, config: C, rank: int) -> None:
        self.config: C = config
        self.tensors: Weights = _RankTensors(checkpoint, config, rank)


class _RankTensors(Mapping[str, Weight]):
    def __init__(self, checkpoint: Source, config: DraftConfig, rank: int) -> None:
        self._tensors, self._rank = checkpoint.tensors, rank
        self._numbers: dict[str, int] = {}
        self._first_experts: dict[str, int] = {}
        self._cuts: dict[str, _Cut | None] = {}
        for start, own in config.decoders.items():
            self._add(start, checkpoint.config.decoders[start], own)

    def _add(self, start: str, whole: ModelConfig, own: ModelConfig) -> None:
        """A decoder whose tensors have names that begin so."""
        rank = self._rank
        self._numbers[start + RANK] = rank
        for i, (spec, own_spec) in enumerate(zip(whole.layers, own.layers, strict=True)):
            if spec.ffn is None or own_spec.ffn is None:
                continue
            (_, count), (_, held) = spec.ffn.choice, own_spec.ffn.choice
            if held < count:
                self._first_experts[f"{start}layers.{i}.{EXPERTS}"] = rank * held
                self._numbers[f"{start}layers.{i}.mlp.{FIRST_EXPERT}"] = rank * held
        shapes, place = model_tensors(whole), _Place(rank, own.ranks)
        for name, shape in model_tensors(own).items():
            of = shapes[self._source(start + name).removeprefix(start)]
            if name in (EMBEDDING, HEAD):
                self._cuts[start + name] = _Cut.of_vocabulary(of[0], shape[0], rank)
            else:
                sections = _sections(name, whole, own)
                self._cuts[start + name] = _Cut.of(of, shape, place, sections)

    def __getitem__(self, name: str) -> Weight:
        if name in self._numbers:
            return torch.tensor([[self._numbers[name]]])
        weight = self._tensors[self._source(name)]
        cut = self._cuts.get(name)
        if cut is not None:
            return cut.of_weight(weight, name)
        if name.endswith(_BIAS) and isinstance(weight, Tensor):
            summed = self._cuts.get(name.removesuffix(_BIAS) + _WEIGHT)
            is_added = summed is not None and summed.dim == 1 and self._rank > 0
            return torch.zeros_like(weight) if is_added else weight
        return weight

    def __iter__(self) -> Iterator[str]:
        yield from (*self._numbers, *(name for name in self._cuts if name in self))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        if name in self._numbers:
            return True
        return isinstance(name, str) and self._source(name) in self._tensors

    def _source(self, name: str) -> str:
        """The checkpoint's name of a rank's tensor."""
        for start, first in self._first_experts.items():
            if name.startswith(start):
                expert, _, rest = name.removeprefix(start).partition(".")
                return f"{start}{int(expert) + first}.{rest}"
        return name


def _sections(name: str, whole: ModelConfig, own: ModelConfig) -> list[tuple[int, int]]:
    """Sizes in the model and on a rank of what is fused in a tensor."""
    place, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if place != "layers" or not part.startswith("attn."):
        return []
    sizes = (config.layers[int(layer)].mixer.sections(part) for config in (whole, own))
    return list(zip(*sizes, strict=True))
