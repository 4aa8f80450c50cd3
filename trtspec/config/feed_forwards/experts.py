"""ExpertsSpec: a mixture of experts, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from trtspec.config.feed_forwards.base import FeedForwardSpec
from trtspec.config.feed_forwards.dense import DenseSpec, check_activation
from trtspec.config.layer_part import check_sizes, share
from trtspec.config.norm_spec import Shape
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

EXPERTS = "mlp.experts."
"""Suffix of a layer's name; prefix of its experts' tensor names, before the expert's number."""


@strict_config()
@dataclass(frozen=True)
class ExpertsSpec(FeedForwardSpec):
    """A mixture of experts: each row goes through the ``top_k`` of ``num_experts`` that a router
    chooses, which are `DenseSpec`s of ``intermediate_size``; their outputs are summed with the
    router's weights.

    router: how scores become weights: a softmax over all experts, a softmax over the chosen ones,
    or a sigmoid each. router_bias: a bias on the scores; choice_bias: a bias for the choice only.
    normalised: weights of the chosen experts are scaled to sum to 1. weight_scale: a factor applied
    after that. num_groups, top_groups: experts lie in groups, of which the best are chosen first.
    shared_size: width of a shared expert that every row goes through; 0: none. shared_gate:
    multiply its output by the sigmoid of a gate. beside: a dense part that is computed in addition
    and summed. limit: clamps the gate to at most this, and up to both sides, before the activation;
    None: no clamp. up_offset: added to up after that. held: how many experts a rank has (see
    `sharded_by_expert`); None: all.

    Raises ConfigError when fields contradict each other.
    """

    words: ClassVar[str] = "mixtures of experts"

    num_experts: int
    top_k: int
    intermediate_size: int
    router: Literal["softmax", "softmax_of_chosen", "sigmoid"] = "softmax"
    router_bias: bool = False
    choice_bias: bool = False
    normalised: bool = True
    weight_scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    limit: float | None = None
    up_offset: float = 0.0
    shared_size: int = 0
    shared_gate: bool = False
    beside: DenseSpec | None = None
    held: int | None = None
    kind: Literal["experts"] = "experts"

    def __post_init__(self) -> None:
        check_sizes(self, "num_experts", "top_k", "intermediate_size", "num_groups", "top_groups")
        for few, many in (("top_k", "num_experts"), ("top_groups", "num_groups")):
            if getattr(self, few) > getattr(self, many):
                raise ConfigError(
                    f"{few} is {getattr(self, few)}; there are {getattr(self, many)} ({many})"
                )
        if self.num_experts % self.num_groups:
            raise ConfigError(
                f"num_experts {self.num_experts} is not a multiple of num_groups {self.num_groups}"
            )
        if self.limit is not None and not self.limit > 0:
            raise ConfigError(f"limit is {self.limit}; it must be above 0")
        if self.shared_size < 0:
            raise ConfigError(f"shared_size is {self.shared_size}; it must not be negative")
        if self.shared_gate and not self.shared_size:
            raise ConfigError("shared_gate is the gate of a shared expert, but shared_size is 0")
        if self.held is not None and not 0 < self.held <= self.num_experts:
            raise ConfigError(f"held is {self.held}; there are {self.num_experts} experts")
        check_activation(self.activation)

    @property
    def num_held(self) -> int:
        """Local experts, of those that the router chooses among."""
        return self.num_experts if self.held is None else self.held

    @property
    def expert(self) -> DenseSpec:
        """The spec of a single expert."""
        return DenseSpec(self.intermediate_size, self.activation, self.gated, self.bias)

    @property
    def choice(self) -> tuple[float, int]:
        """See `FeedForwardSpec.choice`."""
        return self.top_k * self.num_held / self.num_experts, self.num_held

    def sharded(self, ranks: int) -> ExpertsSpec:
        """See `LayerPart.sharded`: a share of every expert's inner elements."""
        inner = share("intermediate_size of the experts", self.intermediate_size, ranks)
        shared = share("shared_size", self.shared_size, ranks)
        beside = None if self.beside is None else self.beside.sharded(ranks)
        return replace(self, intermediate_size=inner, shared_size=shared, beside=beside)

    def sharded_by_expert(self, ranks: int) -> ExpertsSpec:
        """See `FeedForwardSpec.sharded_by_expert`; a shared expert is still split."""
        held = share("num_experts", self.num_experts, ranks)
        shared = share("shared_size", self.shared_size, ranks)
        beside = None if self.beside is None else self.beside.sharded(ranks)
        return replace(self, held=held, shared_size=shared, beside=beside)

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """See `FeedForwardSpec.tensors`."""
        count = self.num_experts
        yield "mlp.router.scores.weight", (count, hidden)
        if self.router_bias:
            yield "mlp.router.scores.bias", (count,)
        if self.choice_bias:
            yield "mlp.router.choice_bias", (count,)
        if self.shared_size:
            yield from DenseSpec(self.shared_size).at("mlp.shared.", hidden)
        if self.shared_gate:
            yield "mlp.shared_gate.weight", (1, hidden)
        for expert in range(self.num_held):
            yield from self.expert.at(f"{EXPERTS}{expert}.", hidden)
