"""Several MTP modules, one for each depth: module i continues what module i - 1 computed.

Row p of module i (from 0) pairs the features of module i - 1 at row p (for module 0: the target's
hidden state) with the token at p + 1 + i, and predicts the token at p + 2 + i. (DeepSeek-V3, arXiv
2412.19437, 2.2.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.config.quantised import Weight, Weights
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.layer_facts import Read, within
from trtspec.models.rows import Caches, PackedRows
from trtspec.speculative.eagle import EagleDraft
from trtspec.speculative.mtp.modules_shape import MtpModulesConfig
from trtspec.speculative.mtp.shape import MtpConfig
from trtspec.speculative.tree_rollout import DraftNetwork


class ModulesSource(Protocol):
    """The source of the modules' weights: a checkpoint whose tensor names are ``modules.{i}.``
    followed by those of an EAGLE draft."""

    @property
    def config(self) -> MtpModulesConfig: ...

    @property
    def tensors(self) -> Weights: ...


@dataclass(frozen=True)
class ModuleSource:
    """One module of a checkpoint, as `EagleDraft.load_weights` reads it."""

    config: MtpConfig
    tensors: Weights

    @classmethod
    def of(cls, checkpoint: ModulesSource, index: int) -> ModuleSource:
        return cls(checkpoint.config.module, _Within(checkpoint.tensors, f"modules.{index}."))


class ModuleStack(nn.Module):
    """A network for each depth (see `VanillaRollout`), each with layers of its own in the caches,
    in order of depth."""

    def __init__(self, depths: Iterable[nn.Module], layers: int) -> None:
        """``depths``: `DraftNetwork`s that read features; ``layers``: of each."""
        super().__init__()
        self.depths = nn.ModuleList(depths)
        self.layers_of_each = layers

    def at(self, depth: int, caches: Caches) -> tuple[DraftNetwork, Caches]:
        """The network of a depth (from 0) and its part of the caches."""
        count = self.layers_of_each
        own = slice(depth * count, (depth + 1) * count)
        return cast(DraftNetwork, self.depths[depth]), caches[own]

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        hidden_in: Tensor,
        caches: Caches,
    ) -> tuple[Tensor]:
        """Feed rows without drafting (a prefill): writes their K/V, returns the features of the
        last network.

        ``input_ids [T] i64`` are the tokens of depth 0, the one after each row; deeper networks get
        the same shifted up. So for the last ``num_modules - 1`` rows of each request some networks
        read wrong tokens: these rows must be fed again.
        """
        features: Tensor | None = hidden_in
        ids = input_ids
        for depth in range(len(self.depths)):
            network, own = self.at(depth, caches)
            features, _ = network.draft(ids, features, rows, own)
            ids = ids.roll(-1)
        assert features is not None
        return (features,)


class MtpModules(ModuleStack):
    """Modules over packed rows and paged caches.

    The ``state_dict`` names are those of `EagleDraft` with the prefix ``depths.{i}.``; each module
    names what it borrows from the target.
    """

    def __init__(
        self,
        config: MtpModulesConfig,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        module, count = config.module, config.num_modules
        modules = (
            EagleDraft(module, target, dtype, formats=formats.at(f"modules.{i}"))
            for i in range(count)
        )
        super().__init__(modules, module.decoder.num_layers)
        self.config = config

    @staticmethod
    def matrices(config: MtpModulesConfig) -> list[Read]:
        """The matrices that a rollout reads: every module runs once."""
        one = EagleDraft.matrices(config.module)
        modules = range(config.num_modules)
        return [within(f"modules.{i}.", read) for i in modules for read in one]

    def load_weights(self, checkpoint: ModulesSource, target: Weights) -> None:
        """Load every buffer of the modules' own from their checkpoint, ignoring its further
        modules. ``target``: see `EagleDraft.load_weights`.

        Raises:
            CheckpointError: made for another config, or a tensor is missing.
        """
        for depth, module in enumerate(self.depths):
            assert isinstance(module, EagleDraft)
            module.load_weights(ModuleSource.of(checkpoint, depth), target)


class _Within(Mapping[str, Weight]):
    """The tensors whose names begin with a prefix, by the rest of their names; loaded on demand."""

    def __init__(self, tensors: Weights, prefix: str) -> None:
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> Weight:
        return self._tensors[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        size = len(self._prefix)
        return (name[size:] for name in self._tensors if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
