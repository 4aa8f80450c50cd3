"""DSpark (arXiv 2607.05147): each slot's guess is corrected by the token before it.

A low-rank bias on the logits, W1[previous] W2, makes neighbours consistent; it may be gated by the
slot's state, or come from a recurrent state along the block. A confidence head estimates the
probability that the guess of a slot is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trtspec.backends.parts import OpenParts, Part, PartRole, RowMethod
from trtspec.config.model import ModelConfig
from trtspec.config.quantised import Weights
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree import TreeShape
from trtspec.config.tree_decoding import LEFT_OUT
from trtspec.errors import ConfigError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.layer_facts import Matrix, Read
from trtspec.models.linear import Linear
from trtspec.models.loading import load_linear
from trtspec.speculative.block.backbone import BlockDraft
from trtspec.speculative.block.format import BlockFormat, Said, Tensors
from trtspec.speculative.block.graphs import block_kind, block_parts
from trtspec.speculative.block.options import BlockDecodingConfig, block_config
from trtspec.speculative.block.rollout import PathRollout
from trtspec.speculative.block.shape import BlockConfig
from trtspec.speculative.block.stand_in import LoweredBlockNetwork
from trtspec.speculative.hidden_state_network import HiddenStateSource

_MIXERS = {"vanilla": (0, 0), "gated": (1, 1), "rnn": (2, 3)}
"""For each kind of bias, how many vectors of the rank its mixing layer reads besides the slot's
state, and how many it outputs."""
_BIAS = "bias"


@strict_config()
@dataclass(frozen=True)
class DSparkConfig(BlockConfig):
    """In addition to what all have: markov_rank: of the bias, 0 for none. markov_head: its kind.
    confidence: whether there is a confidence head; confidence_reads_token: whether it also reads
    W1[previous]."""

    kind: ClassVar[str] = "dspark"
    title: ClassVar[str] = "DSpark"

    markov_rank: int = 0
    markov_head: str = "vanilla"
    confidence: bool = False
    confidence_reads_token: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.markov_rank < 0:
            raise ConfigError(f"markov_rank={self.markov_rank} must not be negative")
        if self.markov_head not in _MIXERS:
            raise ConfigError(f"markov_head={self.markov_head!r} is not one of {list(_MIXERS)}")
        if self.confidence_reads_token and not (self.confidence and self.markov_rank):
            raise ConfigError(
                "confidence_reads_token needs a confidence head and markov_rank above 0, whose "
                "embedding of the token before it is what is read"
            )

    @property
    def own_parts(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the small tensors that are loaded as they are, by name."""
        rank, hidden = self.markov_rank, self.decoder.hidden_size
        shapes: dict[str, tuple[int, ...]] = {}
        if rank:
            shapes["markov.w1"] = (self.decoder.vocab_size, rank)
            reads, makes = _MIXERS[self.markov_head]
            if makes:
                shapes["markov.mix"] = (makes * rank, reads * rank + hidden)
                shapes["markov.mix_bias"] = (makes * rank,)
        if self.confidence:
            shapes["confidence.weight"] = (1, hidden + rank * self.confidence_reads_token)
            shapes["confidence.bias"] = (1,)
        return shapes


class MarkovWalk:
    """See `PathWalk`. ``own``: the tensors of `DSparkConfig.own_parts`; ``bias``: rows ``[R, r]``
    times W2, ``[R, V_d] f32``; ``slots [B, D, H]``: the head's input; ``marginals [B, D, V_d]``:
    its output."""

    def __init__(
        self,
        config: DSparkConfig,
        own: Mapping[str, Tensor],
        bias: Callable[[Tensor], Tensor],
        slots: Tensor,
        marginals: Tensor,
    ) -> None:
        self._config, self._own, self._bias = config, own, bias
        self._slots, self._marginals = slots, marginals
        self._state: Tensor | None = None
        self._read = slots[:, :0]

    def logits(self, depth: int, tokens: Tensor, lane: Tensor) -> Tensor:
        """See `PathWalk.logits`."""
        slot = self._slots[:, depth, None].expand(-1, tokens.shape[1], -1)
        self._read = slot
        found = self._marginals[:, depth, None]
        if not self._config.markov_rank:
            return found.expand(-1, tokens.shape[1], -1)
        previous = F.embedding(tokens, self._own["markov.w1"])
        if self._config.confidence_reads_token:
            self._read = torch.cat((slot, previous), dim=-1)
        latent = self._mixed(slot, previous, lane)
        return found + self._bias(latent.flatten(0, 1)).view(*tokens.shape, -1)

    def confidence(self) -> Tensor | None:
        """See `PathWalk.confidence`."""
        if not self._config.confidence:
            return None
        weight, bias = self._own["confidence.weight"], self._own["confidence.bias"]
        return F.linear(self._read, weight, bias)[..., 0].float()

    def _mixed(self, slot: Tensor, previous: Tensor, lane: Tensor) -> Tensor:
        """The factor of W2 ``[B, width, r]``."""
        kind = self._config.markov_head
        if kind == "vanilla":
            return previous
        mix, bias = self._own["markov.mix"], self._own["markov.mix_bias"]
        if kind == "gated":
            gate = torch.sigmoid(F.linear(torch.cat((slot, previous), dim=-1), mix, bias))
            return gate * previous
        if self._state is None:
            state = torch.zeros_like(previous)
        else:
            state = self._state.gather(1, lane[:, :, None].expand_as(previous))
        joint = F.linear(torch.cat((state, previous, slot), dim=-1), mix, bias)
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        self._state = gate * state + (1 - gate) * torch.tanh(candidate)
        return torch.tanh(output)


class DSparkDraft(BlockDraft):
    """`BlockDraft` with the tensors of `DSparkConfig.own_parts`, and ``markov_head.*``, W2."""

    own_buffers = (*BlockDraft.own_buffers, "markov.", "confidence.")

    config: DSparkConfig

    def __init__(
        self,
        config: DSparkConfig,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__(config, target, dtype, formats=formats)
        self.markov, self.confidence = nn.Module(), nn.Module()
        for name, shape in config.own_parts.items():
            module, _, own = name.partition(".")
            getattr(self, module).register_buffer(own, torch.empty(shape, dtype=dtype))
        rank, rows = config.markov_rank, config.draft_vocab_size
        form = formats.of({"markov_head": rows})
        self.markov_head = Linear(rank, rows, dtype, format=form) if rank else None

    @staticmethod
    def matrices(config: Any) -> list[Read]:
        """See `BlockDraft.matrices`."""
        found, rank = BlockDraft.matrices(config), config.markov_rank
        return [*found, Matrix(config.draft_vocab_size, rank, "markov_head")] if rank else found

    @torch.no_grad()
    def load_weights(self, checkpoint: HiddenStateSource, target: Weights) -> None:
        super().load_weights(checkpoint, target)
        if self.markov_head is not None:
            load_linear(self.markov_head, checkpoint.tensors, ["markov_head"])

    def bias(self, latent: Tensor) -> Tensor:
        """Rows ``[R, r]`` -> the bias on logits, ``[R, V_d] f32``."""
        assert self.markov_head is not None, "without it nothing is added"
        found: Tensor = self.markov_head(latent, torch.float32)
        return found

    def walk(self, slots: Tensor, marginals: Tensor) -> MarkovWalk:
        """See `PathNetwork.walk`."""
        own = {name: self.get_buffer(name) for name in self.config.own_parts}
        return MarkovWalk(self.config, own, self.bias, slots, marginals)


class LoweredDSpark(LoweredBlockNetwork):
    """The same made of lowered graphs, of which W2 is one."""

    def __init__(self, config: DSparkConfig, parts: OpenParts) -> None:
        super().__init__(parts)
        self._config = config
        self._bias = parts.session(_BIAS) if config.markov_rank else None
        found = {name: parts.tensor(name) for name in config.own_parts}
        self._own = {name: tensor for name, tensor in found.items() if tensor is not None}

    def bias(self, latent: Tensor) -> Tensor:
        """See `DSparkDraft.bias`."""
        assert self._bias is not None, "without it nothing is added"
        return self._bias.run([latent.contiguous()])[0]

    def walk(self, slots: Tensor, marginals: Tensor) -> MarkovWalk:
        """See `PathNetwork.walk`."""
        return MarkovWalk(self._config, self._own, self.bias, slots, marginals)


def _parts(config: DSparkConfig, states: int) -> tuple[Part, ...]:
    if not config.markov_rank:
        return block_parts(config, states)
    method = RowMethod(_BIAS, config.markov_rank, "latent", "bias")
    return (*block_parts(config, states), Part(PartRole.METHOD, _BIAS, None, method=method))


_FOREIGN = {
    "dspark_draft_topk": Foreign("all tokens are scored; leave it out", (None,)),
}
_ALIASES = {
    "dspark_block_size": "block_size",
    "speculative_dspark_block_size": "block_size",
    "dspark_confidence_threshold": "confidence_threshold",
}


@block_config(_ALIASES, _FOREIGN)
@dataclass(frozen=True, kw_only=True)
class DSparkDecodingConfig(BlockDecodingConfig):
    """DSpark: a chain through the block, each guess given the one before it; with topk or choices,
    a tree of such paths. block_size (also `speculative_dspark_block_size`) is the number of drafts
    if max_draft_len is left out: the root's row guesses too. confidence_threshold: drafting stops
    before a token whose probability of acceptance, given the one before it, is below this according
    to the confidence head. Options: see `BlockDecodingConfig`."""

    method: ClassVar[str] = "dspark"
    least_key: ClassVar[str | None] = "confidence_threshold"

    confidence_threshold: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.confidence_threshold < 1:
            raise ConfigError(
                f"confidence_threshold={self.confidence_threshold} must be at least 0 and below 1"
            )

    def _resolve_numbers(self) -> TreeShape:
        if self.max_draft_len == LEFT_OUT and self.block_size is not None:
            self._set("max_draft_len", self.block_size)
        return super()._resolve_numbers()


def _fields(said: Said, headers: Mapping[str, Any]) -> Mapping[str, Any]:
    rank, w1 = said("markov_rank"), headers.get("markov_head.markov_w1.weight")
    confidence, reads_token = said("enable_confidence_head"), said("confidence_head_with_markov")
    if confidence is None:  # ModelOpt, whose head reads the token, has a word of its own
        confidence = reads_token = said("use_confidence_head")
    if confidence is None:
        confidence = "confidence_head.proj.weight" in headers
    if rank is None and w1 is None and not confidence:
        raise ValueError(
            "config.json does not say markov_rank, and there are no tensors of a Markov or a "
            "confidence head, which make a DSpark draft"
        )
    return {
        "markov_rank": (w1.shape[1] if w1 is not None else 0) if rank is None else rank,
        "markov_head": said("markov_head_type") or "vanilla",
        "confidence": bool(confidence),
        "confidence_reads_token": bool(confidence and reads_token),
    }


def _tensors(config: DSparkConfig) -> Tensors:
    mixer = {"gated": "gate_proj", "rnn": "joint_proj"}.get(config.markov_head)
    names = {
        "markov.w1": "markov_head.markov_w1.weight",
        "markov.mix": f"markov_head.{mixer}.weight",
        "markov.mix_bias": f"markov_head.{mixer}.bias",
        "confidence.weight": "confidence_head.proj.weight",
        "confidence.bias": "confidence_head.proj.bias",
    }
    for name, shape in config.own_parts.items():
        yield names[name], name, shape
    if config.markov_rank:
        shape = (config.draft_vocab_size, config.markov_rank)
        yield "markov_head.markov_w2.weight", "markov_head.weight", shape


def _has_heads(said: Said) -> bool:
    """DeepSpec's DFlash drafts have the same architecture, with neither of the two heads."""
    return said("markov_rank") != 0 or bool(said("enable_confidence_head"))


DSPARK_NETWORK = replace(
    block_kind(DSparkConfig, DSparkDraft, __name__, PathRollout),
    parts=_parts,
    stand_in=LoweredDSpark,
)
DSPARK_FORMAT = BlockFormat(
    DSparkDecodingConfig.method,
    DSparkConfig,
    "DSpark",
    "dspark",
    keys=frozenset(
        {"attention_mode", "confidence_head_alpha", "confidence_head_with_markov"}
        | {"enable_confidence_head", "markov_head_type", "markov_rank", "num_anchors"}
        | {"use_confidence_head"}
    ),
    fields=_fields,
    tensors=_tensors,
    of_tokens=("markov_head.weight",),
    is_one=_has_heads,
)
