"""A mixture of experts as the feed-forward part of a decoder layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.formats.base import ExpertLayers, Mixture, Rounding, WeightFormat
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS, floats_beside
from trtspec.formats.stored import StoredWeight
from trtspec.models.block import Block, Kernels
from trtspec.models.feed_forwards.dense import DenseFeedForward
from trtspec.models.linear import Linear
from trtspec.models.norm import Norm
from trtspec.ops.moe import ACTIVATIONS, Gating

FIRST_EXPERT = "first_expert"
"""Suffix of a feed-forward part's name: among a rank's tensors, its first expert's number."""
_TINY = 1e-20  # added to a sum of sigmoids, as DeepSeek does


class ExpertLinear(nn.Module):
    """The same linear layer (or several fused along their outputs) of every expert: the format's
    buffers with the experts as first dimension, and ``bias [E, N]`` if it has one."""

    bias: Tensor | None

    def __init__(
        self,
        num_experts: int,
        in_features: int,
        out_features: int,
        dtype: torch.dtype,
        bias: bool,
        *,
        format: WeightFormat,
    ) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.in_features = in_features
        self.out_features = out_features
        self.format = format
        self.rounding = Rounding()
        storage = format.storage(out_features, in_features, dtype)
        self._weight_names = tuple(storage)
        for name, spec in storage.items():
            shape = (num_experts, *spec.shape)
            self.register_buffer(name, torch.empty(shape, dtype=spec.dtype))
        biases = torch.empty(num_experts, out_features, dtype=dtype) if bias else None
        self.register_buffer("bias", biases)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The buffers of the format, by name."""
        return {name: getattr(self, name) for name in self._weight_names}

    @property
    def layers(self) -> ExpertLayers:
        """The layer in the form that a format multiplies."""
        return ExpertLayers(self.weights, self.bias, self.out_features)

    def load(
        self, expert: int, weights: Sequence[StoredWeight], biases: Sequence[Tensor] = ()
    ) -> None:
        """Load the layer of one expert, see `Linear.load`.

        Raises:
            CheckpointError: values that the format cannot hold.
        """
        own = {name: buffer[expert] for name, buffer in self.weights.items()}
        self.rounding += self.format.load(weights, own)
        if self.bias is not None:
            self.bias[expert].copy_(torch.cat(list(biases)))


class Router(nn.Module):
    """Chooses each row's experts and their weights: ``scores.P`` of the router's matrix, which is
    never quantised, and ``choice_bias [E] f32`` if the spec has one.

    Ties are ordered by torch.topk, as in transformers.
    """

    choice_bias: Tensor | None

    def __init__(
        self, spec: ExpertsSpec, hidden: int, dtype: torch.dtype, format: WeightFormat
    ) -> None:
        super().__init__()
        self.spec = spec
        count = spec.num_experts
        self.scores = Linear(hidden, count, dtype, spec.router_bias, format=format)
        bias = torch.empty(count, dtype=torch.float32) if spec.choice_bias else None
        self.register_buffer("choice_bias", bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x [T, hidden]`` -> experts ``[T, k] i64`` and their weights ``[T, k] f32``."""
        spec = self.spec
        logits = self.scores(x, torch.float32)
        if spec.router == "softmax_of_chosen":
            best, chosen = torch.topk(logits, spec.top_k, dim=-1)
            return chosen, torch.softmax(best, dim=-1) * spec.weight_scale
        if spec.router == "softmax":
            scores = torch.softmax(logits, dim=-1)
        else:  # written out: see `trtspec.ops.linear.swiglu`
            scores = 1 / (1 + torch.exp(-logits))
        choice = scores if self.choice_bias is None else scores + self.choice_bias
        _, chosen = torch.topk(self._of_best_groups(choice), spec.top_k, dim=-1)
        weights = scores.gather(1, chosen)
        if spec.normalised:
            total = weights.sum(-1, keepdim=True)
            weights = weights / (total if spec.router == "softmax" else total + _TINY)
        return chosen, weights * spec.weight_scale

    def _of_best_groups(self, choice: Tensor) -> Tensor:
        """The scores, minus infinity outside the best groups. A group's score is its best one, with
        sigmoids the sum of its two best ones (DeepSeek-V2 and V3)."""
        spec = self.spec
        if spec.top_groups == spec.num_groups:
            return choice
        grouped = choice.view(choice.shape[0], spec.num_groups, -1)
        counted = 1 if spec.router == "softmax" else min(2, grouped.shape[-1])
        rank = torch.topk(grouped, counted, dim=-1)[0].sum(-1)
        _, best = torch.topk(rank, spec.top_groups, dim=-1)
        kept = torch.zeros_like(rank).scatter(1, best, 1.0)
        return grouped.masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).flatten(1)


class Experts(nn.Module):
    """A `Router`, the experts ``experts.gate_up`` and ``experts.down``, and, if the spec has them,
    ``shared``, a dense part for every row, and ``shared_gate``, its factor. If only some experts
    are here, ``first_expert [1, 1] i64`` is the number of the first one."""

    first_expert: Tensor | None

    def __init__(
        self,
        spec: ExpertsSpec,
        hidden: int,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        count, inner = spec.num_held, spec.intermediate_size
        # That of all experts, so that all ranks have the same.
        format = formats.at("experts").of_experts(spec.num_experts, ("gate", "up", "down"))
        floats = floats_beside(format)
        self.inner = inner
        self.format = format
        self.gating = Gating(spec.activation, spec.limit or 0.0, spec.up_offset)
        self.router = Router(spec, hidden, dtype, floats)
        self.experts = nn.ModuleDict(
            {
                "gate_up": ExpertLinear(count, hidden, 2 * inner, dtype, spec.bias, format=format),
                "down": ExpertLinear(count, inner, hidden, dtype, spec.bias, format=format),
            }
        )
        # Of two dimensions: see `trtspec.models.ranks.Ranks`.
        first = None if spec.held is None else torch.zeros(1, 1, dtype=torch.int64)
        self.register_buffer(FIRST_EXPERT, first)
        self.shared: DenseFeedForward | None = None
        self.shared_gate: Linear | None = None
        if spec.shared_size:
            dense = DenseSpec(spec.shared_size, spec.activation)
            self.shared = DenseFeedForward(dense, hidden, dtype, formats=formats.at("shared"))
        if spec.shared_gate:
            self.shared_gate = Linear(hidden, 1, dtype, format=floats)

    def forward(self, x: Tensor, *, norm: Norm | None, residual: Tensor | None) -> Tensor:
        """``x [T, hidden]`` -> ``[T, hidden]``, with the sum of ``residual`` if one is given."""
        x = x if norm is None else norm(x)
        if self.shared is not None and self.shared_gate is None:
            residual = self.shared(x, norm=None, residual=residual)
        elif self.shared is not None and self.shared_gate is not None:
            factor = 1 / (1 + torch.exp(-self.shared_gate(x, torch.float32)))
            own = (self.shared(x, norm=None, residual=None) * factor).to(x.dtype)
            residual = own if residual is None else residual + own
        up, down = self.experts["gate_up"], self.experts["down"]
        assert isinstance(up, ExpertLinear) and isinstance(down, ExpertLinear)
        chosen, weights = self.router(x)
        if self.first_expert is not None:
            own = chosen - self.first_expert[0]
            chosen = torch.where((own >= 0) & (own < len(up.layers)), own, -1)
        mixture = Mixture(up.layers, down.layers, self.inner, self.gating)
        return self.format.mixture(mixture, x, chosen, weights, residual)


def _missing(spec: ExpertsSpec) -> Iterator[str]:
    if not spec.gated:
        yield "experts without a gate"
    if spec.activation not in ACTIVATIONS:
        yield f"experts with the activation {spec.activation}"
    if spec.beside is not None:
        yield "a dense part beside experts"


def _lacks(spec: ExpertsSpec, kernels: Kernels) -> Iterator[str]:
    if kernels is Kernels.CUDA:
        yield spec.words


MIXTURE = Block(ExpertsSpec, Experts, _missing, _lacks)
