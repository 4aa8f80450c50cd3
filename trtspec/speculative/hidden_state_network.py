"""HiddenStateNetwork: loads draft networks that read the target's hidden states."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import nn

from trtspec.config.quantised import Weights
from trtspec.config.state_reader import StateReader
from trtspec.errors import CheckpointError
from trtspec.formats.stored import read_tensor
from trtspec.models.linear import Linear
from trtspec.models.loading import load_layers, load_linear
from trtspec.models.vocabulary import DraftVocabulary


class HiddenStateSource(Protocol):
    """What `HiddenStateNetwork.load_weights` reads: a draft checkpoint by internal names."""

    @property
    def config(self) -> StateReader: ...

    @property
    def tensors(self) -> Weights: ...


class HiddenStateNetwork(DraftVocabulary):
    """A draft network that projects the target's hidden states (``fc``) for decoder layers of its
    own.

    own_buffers: name prefixes of buffers, outside the layers, that are loaded as they are.
    """

    own_buffers: ClassVar[tuple[str, ...]]

    config: StateReader
    fc: Linear
    layers: nn.ModuleList

    @torch.no_grad()
    def load_weights(self, checkpoint: HiddenStateSource, target: Weights) -> None:
        """Load every buffer of the draft's own from its checkpoint. ``target``: see `load_head`.

        Raises:
            CheckpointError: made for another config, or a tensor is missing.
        """
        if checkpoint.config != self.config:
            raise CheckpointError(
                f"the draft checkpoint's config {checkpoint.config} is not the network's "
                f"{self.config}"
            )
        tensors = checkpoint.tensors
        load_linear(self.fc, tensors, ["fc"])
        self.load_embedding(tensors)
        for name, buffer in self.named_buffers():
            if name.startswith(self.own_buffers):
                buffer.copy_(read_tensor(tensors, name))
        load_layers(self.layers, tensors)
        self.load_head(tensors, target)
