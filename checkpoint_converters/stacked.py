"""Tensors that stack a matrix of every expert, split into one tensor per expert.

Checkpoints store experts one by one or stacked; both are read as one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.containers.tensor_sources import RowRange
from checkpoint_converters.names import NameMap
from trtspec.config.feed_forwards.experts import EXPERTS
from trtspec.config.layer_tensors import layer_tensors
from trtspec.config.model import ModelConfig
from trtspec.config.quantised import QuantisedTensor, Weight
from trtspec.config.storage import WeightStorage
from trtspec.errors import CheckpointError


@dataclass(frozen=True)
class Stacked:
    """What one tensor ``[E, ...]`` holds of every expert.

    parts: by internal names, ``("gate", "up")`` or ``("down",)``, concatenated along the outputs.
    kind: ``weight`` or ``bias``. transposed: matrices are stored as ``[inputs, outputs]``.
    alternating: the outputs of the parts alternate one by one.
    """

    parts: tuple[str, ...]
    kind: str = "weight"
    transposed: bool = False
    alternating: bool = False


@dataclass(frozen=True, eq=False)
class ExpertPart(TensorHeader):
    """One part of one expert in a `Stacked` tensor with another order, read on demand."""

    own: TensorHeader
    part: int
    stacked: Stacked

    def read(self) -> Tensor:
        """A copy with the outputs first; reads only this expert."""
        own = self.own.read()
        return self._rows(own.t() if self.stacked.transposed and own.dim() == 2 else own)

    def weight(self) -> Weight:
        """The same; a quantised one always has its outputs first."""
        own = self.own.weight() if self.storage is not None else None
        return own.with_rows(self._rows) if isinstance(own, QuantisedTensor) else self.read()

    @property
    def storage(self) -> WeightStorage | None:
        return self.own.storage

    def _rows(self, own: Tensor) -> Tensor:
        count = len(self.stacked.parts)
        if self.stacked.alternating:
            return own[self.part :: count].contiguous()
        return own.chunk(count)[self.part].contiguous()


def split_stacked(
    stacked: Mapping[str, Stacked],
    names: NameMap,
    config: ModelConfig,
    headers: Mapping[str, TensorHeader],
) -> dict[str, TensorHeader]:
    """The tensors with stacked ones replaced by one per expert; `stacked` has ``{i}`` for the
    layer.

    Raises:
        CheckpointError: a tensor with a shape other than the config requires.
    """
    found = dict(headers)
    for i, spec in enumerate(config.layers):
        _, count = (0, 0) if spec.ffn is None else spec.ffn.choice
        if not count:
            continue
        shapes = layer_tensors(spec, config.hidden_size)
        for theirs, each in stacked.items():
            whole = found.pop(theirs.format(i=i), None)
            if whole is None:
                continue
            one = shapes[f"{EXPERTS}0.{each.parts[0]}.{each.kind}"]
            outputs, inputs = len(each.parts) * one[0], one[1:]
            matrix = (*inputs, outputs) if each.transposed else (outputs, *inputs)
            wanted = (count, *matrix)
            if whole.shape != wanted:
                raise CheckpointError(
                    f"{whole.file}: tensor {whole.name} has shape {list(whole.shape)}, its "
                    f"config.json asks for {list(wanted)}"
                )
            for part, ours in enumerate(each.parts):
                pattern = names.names[f"layers.{{i}}.{EXPERTS}{{e}}.{ours}.{each.kind}"]
                for e in range(count):
                    found[pattern.format(i=i, e=e)] = _part_of(whole.at(e), one, part, each)
    return found


def _part_of(
    own: TensorHeader, shape: tuple[int, ...], part: int, stacked: Stacked
) -> TensorHeader:
    """One tensor of one expert; in the usual order, quantised rows stay quantised."""
    if stacked.transposed or stacked.alternating:
        return ExpertPart(own.name, own.file, own.dtype, shape, own, part, stacked)
    return RowRange.of(own, part * shape[0], shape[0]) if len(stacked.parts) > 1 else own
