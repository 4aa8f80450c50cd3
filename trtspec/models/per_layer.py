"""Per-layer embeddings: a second embedding of each token that every layer reads a part of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.embedding_spec import PerLayerSpec
from trtspec.config.layer import LayerSpec, PerLayerInput
from trtspec.config.layer_tensors import EMBEDDING, PER_LAYER
from trtspec.config.model import ModelConfig
from trtspec.config.quantised import Weights
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.stored import read_tensor
from trtspec.models.activations import activate
from trtspec.models.embedding import Embedding, rounded_scale
from trtspec.models.linear import Linear
from trtspec.models.loading import load_linear
from trtspec.models.norm import make_norm


class PerLayerEmbedding(nn.Module):
    """What all layers are given of a token, see `PerLayerSpec`. Names in the ``state_dict``:
    ``embed.P``, for floats ``embed.weight [V, L * P]``, ``projection.P``, ``norm.weight``."""

    def __init__(
        self, config: ModelConfig, spec: PerLayerSpec, dtype: torch.dtype, formats: NetworkFormats
    ) -> None:
        super().__init__()
        self.spec = spec
        rows = config.num_layers * spec.size
        table = formats.at("per_layer").of_embedding("embed")
        self.rows = spec.rows or config.vocab_size
        self.lacks_rows = self.rows < config.vocab_size
        self.embed = Embedding(self.rows, rows, dtype, format=table)
        projected = formats.at("per_layer").of({"projection": rows})
        self.projection = Linear(config.hidden_size, rows, dtype, format=projected)
        self.norm = make_norm(spec.norm, spec.size, dtype)
        self.scale = rounded_scale(spec.scale, dtype)

    def forward(self, input_ids: Tensor, x: Tensor) -> list[Tensor]:
        """For each layer ``[T, P]``, from ``input_ids [T] i64`` and their embeddings ``x [T,
        H]``."""
        size = self.spec.size
        if self.lacks_rows:
            input_ids = torch.where(input_ids < self.rows, input_ids, 0)
        own = (self.embed(input_ids) * self.scale).view(x.shape[0], -1, size)
        projected = (self.projection(x) * self.spec.projection_scale).view(x.shape[0], -1, size)
        given = (self.norm(projected) + own) * self.spec.sum_scale
        return list(given.unbind(1))

    def load(self, tensors: Weights) -> None:
        """Load from a checkpoint's tensors; CheckpointError if one is missing."""
        self.embed.load(tensors, PER_LAYER + EMBEDDING)
        load_linear(self.projection, tensors, [PER_LAYER + "projection"])
        for name, buffer in self.norm.named_buffers():
            buffer.copy_(read_tensor(tensors, f"{PER_LAYER}norm.{name}"))


class PerLayerPart(nn.Module):
    """The part of a layer that reads its own row of them, see `PerLayerInput`."""

    def __init__(
        self,
        layer: LayerSpec,
        spec: PerLayerInput,
        hidden: int,
        dtype: torch.dtype,
        formats: NetworkFormats,
    ) -> None:
        super().__init__()
        self.activation = spec.activation
        self.gate = Linear(hidden, spec.size, dtype, format=formats.of({"gate": spec.size}))
        self.out = Linear(spec.size, hidden, dtype, format=formats.of({"out": hidden}))
        self.norm = make_norm(layer.norm, hidden, dtype)

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        """``x [T, hidden]``, ``given [T, P]`` -> ``[T, hidden]``."""
        added: Tensor = self.norm(self.out(activate(self.activation, self.gate(x)) * given))
        return x + added
