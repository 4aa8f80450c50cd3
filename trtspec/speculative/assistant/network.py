"""The network of an assistant: its input, its layers over the target's K/V, and its head.

Gemma 4's assistants, as in transformers (`Gemma4AssistantForCausalLM`): the input is the target's
embedding of the newest token next to a state; the state is first the target's, then the assistant's
own. All steps of a rollout see the same K/V, the target's committed ones, from the same position,
the root's.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.config.quantised import Weights
from trtspec.errors import CheckpointError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.formats.stored import read_tensor
from trtspec.models.decoder import DecoderLayer
from trtspec.models.embedding import rounded_scale
from trtspec.models.layer_facts import Matrix, Read, layer_facts
from trtspec.models.linear import Linear
from trtspec.models.loading import load_layers, load_linear
from trtspec.models.norm import make_norm
from trtspec.models.ranks import Ranks
from trtspec.models.rope import LayerRotary
from trtspec.models.rows import Caches, PackedRows
from trtspec.models.vocabulary import TargetParts
from trtspec.speculative.assistant.shape import AssistantConfig

ORDER = "token_order"
"""The tensor that lists the tokens of cluster 0, then those of cluster 1, and so on ``[V] i64``."""
_NEVER = -1e30  # a logit


class AssistantSource(Protocol):
    """What `Assistant.load_weights` reads: an assistant's checkpoint by internal names."""

    @property
    def config(self) -> AssistantConfig: ...

    @property
    def tensors(self) -> Weights: ...


class Assistant(nn.Module):
    """A `FeatureNetwork` over the caches of `AssistantConfig.target_layers`, which it never writes.

    Names in the ``state_dict``: ``pre.P``, ``post.P``, those of `DecoderLayer` behind
    ``layers.{i}.``, ``rotary.*``, ``norm.weight`` and ``ranks.*`` as in `CausalLM`, ``lm_head.P``,
    with clusters ``centroids.P`` and ``cluster_of [V] i64``, and ``target.*`` for the target's
    embedding.
    """

    token_map: Tensor | None = None  # every id is the target's own
    cluster_of: Tensor | None

    def __init__(
        self,
        config: AssistantConfig,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        self.config = config
        body, wide = config.body, config.target_hidden_size
        hidden, vocab = body.hidden_size, body.vocab_size
        self.ranks = Ranks(body.ranks, body.embedding_rows) if body.ranks > 1 else None
        self.target = TargetParts(target, dtype, embed=True, head=False, formats=formats)
        self.embedding_scale = rounded_scale(config.embedding_scale, dtype)
        self.pre = Linear(2 * wide, hidden, dtype, format=formats.of({"pre": hidden}))
        self.rotary = LayerRotary(body)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, hidden, dtype, formats=formats.at(f"layers.{i}"))
            for i, spec in enumerate(config.layers)
        )
        self.places = [config.target_layers.index(layer) for layer in config.sources]
        self.norm = make_norm(body.norm, hidden, dtype)
        self.post = Linear(hidden, wide, dtype, format=formats.of({"post": wide}))
        self.lm_head = Linear(hidden, body.embedding_rows, dtype, format=formats.of_head("head"))
        self.centroids: Linear | None = None
        if config.num_clusters:
            own = formats.of({"centroids": config.num_clusters})
            self.centroids = Linear(hidden, config.num_clusters, dtype, format=own)
        ids = torch.empty(vocab, dtype=torch.int64) if config.num_clusters else None
        self.register_buffer("cluster_of", ids)

    @staticmethod
    def matrices(config: AssistantConfig) -> list[Read]:
        """The matrices that one pass reads, including its head."""
        hidden, wide = config.body.hidden_size, config.target_hidden_size
        clusters = config.num_clusters
        layers = enumerate(layer_facts(spec, hidden) for spec in config.layers)
        return [
            Matrix(hidden, 2 * wide, "pre"),
            *(read for i, facts in layers for read in facts.named(i)),
            Matrix(wide, hidden, "post"),
            *([Matrix(clusters, hidden, "centroids")] if clusters else []),
            Matrix(config.body.embedding_rows, hidden, "head", is_head=True),
        ]

    def fuse(self, hidden_in: Tensor) -> Tensor:
        """The target's hidden states ``[T, H_t]`` are the features of a first pass."""
        return hidden_in

    def draft(
        self,
        input_ids: Tensor,
        features: Tensor | None,
        rows: PackedRows,
        caches: Caches,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `DraftNetwork.draft`; features are ``[T, H_t]``. Rows must not see anything
        uncommitted, as no K/V is written for them."""
        assert features is not None, "an assistant reads states"
        read, ranks = self.target.embedding, self.ranks
        own = read(input_ids) if ranks is None else ranks.rows(read, input_ids)
        if self.embedding_scale != 1:
            own = own * self.embedding_scale
        x = self.pre(torch.cat([own, features], dim=-1))
        rotations = self.rotary.of_layers(rows.positions)
        for layer, place, rotation in zip(self.layers, self.places, rotations, strict=True):
            x = layer(x, rows, rotation, caches[place], ranks=ranks)
        ready: Tensor = self.norm(x if kept is None else x[kept])
        return self.post(ready), ready

    def head(self, hidden: Tensor) -> Tensor:
        """Rows ``[R, H]`` -> logits ``[R, V] f32``; tokens outside the best clusters get the lowest
        value."""
        logits: Tensor = self.lm_head(hidden, torch.float32)
        if self.ranks is not None:
            logits = self.ranks.columns(logits, self.config.body.vocab_size)
        if self.centroids is None or self.cluster_of is None:
            return logits
        scores = self.centroids(hidden, torch.float32)
        best = scores.topk(self.config.top_clusters, dim=-1).indices
        chosen = torch.zeros_like(scores).scatter(1, best, 1.0)
        return torch.where(chosen[:, self.cluster_of] > 0, logits, _NEVER)

    @torch.no_grad()
    def load_weights(self, checkpoint: AssistantSource) -> None:
        """Load every buffer of its own from its checkpoint.

        Raises:
            CheckpointError: made for another config, or a tensor is missing.
        """
        if checkpoint.config != self.config:
            raise CheckpointError(
                f"the checkpoint's config {checkpoint.config} is not the assistant's {self.config}"
            )
        tensors = checkpoint.tensors
        if self.ranks is not None:
            self.ranks.load(tensors)
        load_linear(self.pre, tensors, ["pre"])
        load_linear(self.post, tensors, ["post"])
        load_linear(self.lm_head, tensors, ["head"])
        for name, buffer in self.norm.named_buffers():
            buffer.copy_(read_tensor(tensors, f"norm.{name}"))
        load_layers(self.layers, tensors)
        if self.centroids is not None and self.cluster_of is not None:
            load_linear(self.centroids, tensors, ["centroids"])
            order = read_tensor(tensors, ORDER).long()
            size = len(order) // self.config.num_clusters
            self.cluster_of[order] = torch.arange(len(order)) // size
