"""DFlash2: convolutions along the block, and a walk over the best candidates of its slots.

A short dynamic convolution before and after every sublayer lets a slot see those before it. A
selector scores each pair of neighbouring candidates, so the guesses of a block form a single path.
(https://inco.ai/blog/dflash2.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trtspec.backends.parts import OpenParts
from trtspec.config.model import ModelConfig
from trtspec.config.quantised import Weights
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.formats.stored import read_tensor
from trtspec.models.layer_facts import Matrix, Read
from trtspec.models.linear import Linear
from trtspec.models.ranks import Ranks
from trtspec.models.rope import Rotation
from trtspec.models.rows import Cache
from trtspec.speculative.block.backbone import Block, BlockDraft, BlockLayer
from trtspec.speculative.block.format import BlockFormat, Said, Tensors
from trtspec.speculative.block.graphs import block_kind
from trtspec.speculative.block.options import BlockRowsDecodingConfig, block_config
from trtspec.speculative.block.rollout import PathRollout
from trtspec.speculative.block.shape import BlockConfig
from trtspec.speculative.block.stand_in import LoweredBlockNetwork
from trtspec.speculative.hidden_state_network import HiddenStateSource

_CONVOLUTIONS = ("attention_conv", "mlp_conv")
_SIDES = 2
"""The weights of the convolutions before and after a sublayer are computed from the same row."""


@strict_config()
@dataclass(frozen=True)
class DFlash2Config(BlockConfig):
    """In addition to what all have: conv_kernel_size: taps, the row itself and those before it.
    conv_group_size: neighbouring channels that share what is added to their weights. selector_rank:
    of the pair scores. selector_top_k: candidates per slot."""

    kind: ClassVar[str] = "dflash2"
    title: ClassVar[str] = "DFlash2"

    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 256
    selector_top_k: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        hidden, vocab = self.decoder.hidden_size, self.draft_vocab_size
        if not 1 <= self.conv_kernel_size <= self.block_size:
            raise ConfigError(
                f"conv_kernel_size={self.conv_kernel_size} must be between 1 and the block_size "
                f"{self.block_size}"
            )
        if self.conv_group_size < 1 or hidden % self.conv_group_size:
            raise ConfigError(
                f"conv_group_size={self.conv_group_size} does not divide the hidden size {hidden}"
            )
        if self.selector_rank < 1 or not 1 <= self.selector_top_k <= vocab:
            raise ConfigError(
                f"selector_rank={self.selector_rank} must be at least 1, and selector_top_k="
                f"{self.selector_top_k} between 1 and the {vocab} tokens of the head"
            )

    @property
    def conv_outputs(self) -> int:
        """Outputs per row from which the weights of one convolution's two sides are made."""
        groups = self.decoder.hidden_size // self.conv_group_size
        return _SIDES * self.conv_kernel_size * groups

    @property
    def own_parts(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the selector's tensors, by name."""
        rank = self.selector_rank
        return {
            "selector.projection": (rank, self.decoder.hidden_size),
            "selector.predecessors": (self.decoder.vocab_size, rank),
            "selector.successors": (self.draft_vocab_size, rank),
        }


class BlockConvolution(nn.Module):
    """A depthwise convolution along each block, which sees nothing before the block's first row.
    The weight of a tap is a constant per channel (buffer ``base [2, taps, H]``) plus what a row
    adds to it for its group (``kernel``)."""

    base: Tensor

    def __init__(
        self,
        config: DFlash2Config,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        hidden, self.taps = config.decoder.hidden_size, config.conv_kernel_size
        self.group_size = config.conv_group_size
        outputs = config.conv_outputs
        self.kernel = Linear(hidden, outputs, dtype, format=formats.of({"kernel": outputs}))
        self.register_buffer("base", torch.empty(_SIDES, self.taps, hidden, dtype=dtype))

    def weights(self, x: Tensor) -> Tensor:
        """From rows ``[R, H]`` of a sublayer's input, ``[2, R, taps, H]``: for before the sublayer,
        then for after it."""
        added = self.kernel(x).view(x.shape[0], _SIDES, self.taps, -1).transpose(0, 1)
        wide: Tensor = added[..., None].expand(-1, -1, -1, -1, self.group_size).flatten(3)
        return self.base[:, None] + wide

    def forward(self, x: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
        """Rows ``[R, H]`` with weights ``[R, taps, H]`` -> ``[R, H]``. ``offsets``: see
        `Block.offsets`."""
        found = weights[:, 0] * x
        for tap in range(1, self.taps):
            before = torch.cat((x.new_zeros(tap, x.shape[1]), x[:-tap]))
            found = found + weights[:, tap] * torch.where((offsets >= tap)[:, None], before, 0)
        return found


class ConvolvedLayer(BlockLayer):
    """`BlockLayer` with a convolution around each of its sublayers."""

    def __init__(
        self,
        config: DFlash2Config,
        layer: int,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__(config, layer, dtype, formats=formats)
        inner = (BlockConvolution(config, dtype, formats=formats.at(n)) for n in _CONVOLUTIONS)
        self.attention_conv, self.mlp_conv = inner

    def forward(
        self,
        x: Tensor,
        context: Tensor | None,
        block: Block,
        rotation: Rotation | None,
        cache: Cache,
        ranks: Ranks | None = None,
    ) -> Tensor:
        offsets = block.offsets(x.shape[0])
        normed = self.input_norm(x)
        before, behind = self.attention_conv.weights(normed)
        given = self.attention_conv(normed, before, offsets)
        attended = self.attn(given, context, block, rotation, cache, ranks=ranks)
        attended = attended if ranks is None else ranks.sum(attended)
        x = x + self.attention_conv(attended, behind, offsets)
        normed = self.post_attention_norm(x)
        before, behind = self.mlp_conv.weights(normed)
        made = self.mlp(self.mlp_conv(normed, before, offsets), norm=None, residual=None)
        made = made if ranks is None else ranks.sum(made)
        found: Tensor = x + self.mlp_conv(made, behind, offsets)
        return found


class SelectorWalk:
    """See `PathWalk`: for each slot the head's best candidates, each with its pair score given the
    token before it. ``own``: the tensors of `DFlash2Config.own_parts`."""

    def __init__(
        self, config: DFlash2Config, own: Mapping[str, Tensor], slots: Tensor, marginals: Tensor
    ) -> None:
        self._own, self._marginals = own, marginals
        self._unary, self._candidates = marginals.topk(config.selector_top_k)  # [B, D, K]
        self._projected = F.linear(slots, own["selector.projection"])  # [B, D, r]

    def logits(self, depth: int, tokens: Tensor, lane: Tensor) -> Tensor:
        """See `PathWalk.logits`; anything but candidates has -inf."""
        candidates = self._candidates[:, depth]
        before = F.embedding(tokens, self._own["selector.predecessors"])
        behind = F.embedding(candidates, self._own["selector.successors"])
        pairs = (before * self._projected[:, depth, None]) @ behind.transpose(1, 2)
        scores = self._unary[:, depth, None] + pairs.float()
        shape = (*tokens.shape, self._marginals.shape[2])
        nothing = torch.full(shape, -math.inf, device=scores.device)
        return nothing.scatter(2, candidates[:, None].expand_as(scores), scores)

    def confidence(self) -> None:
        """See `PathWalk.confidence`."""
        return


class DFlash2Draft(BlockDraft):
    """`BlockDraft` of such layers, with the selector's tensors."""

    own_buffers = (*BlockDraft.own_buffers, "selector.")
    layer_class = ConvolvedLayer

    config: DFlash2Config

    def __init__(
        self,
        config: DFlash2Config,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__(config, target, dtype, formats=formats)
        self.selector = nn.Module()
        for name, shape in config.own_parts.items():
            own = name.removeprefix("selector.")
            self.selector.register_buffer(own, torch.empty(shape, dtype=dtype))

    @staticmethod
    def matrices(config: Any) -> list[Read]:
        """See `BlockDraft.matrices`."""
        size, hidden = config.conv_outputs, config.decoder.hidden_size
        names = (f"{name}.kernel" for name in _conv_names(config))
        return [*BlockDraft.matrices(config), *(Matrix(size, hidden, name) for name in names)]

    @torch.no_grad()
    def load_weights(self, checkpoint: HiddenStateSource, target: Weights) -> None:
        super().load_weights(checkpoint, target)
        for name in _conv_names(self.config):
            self.get_buffer(f"{name}.base").copy_(read_tensor(checkpoint.tensors, f"{name}.base"))

    def walk(self, slots: Tensor, marginals: Tensor) -> SelectorWalk:
        """See `PathNetwork.walk`."""
        own = {name: self.get_buffer(name) for name in self.config.own_parts}
        return SelectorWalk(self.config, own, slots, marginals)


class LoweredDFlash2(LoweredBlockNetwork):
    """The same made of lowered graphs."""

    def __init__(self, config: DFlash2Config, parts: OpenParts) -> None:
        super().__init__(parts)
        self._config = config
        found = {name: parts.tensor(name) for name in config.own_parts}
        self._own = {name: tensor for name, tensor in found.items() if tensor is not None}

    def walk(self, slots: Tensor, marginals: Tensor) -> SelectorWalk:
        """See `PathNetwork.walk`."""
        return SelectorWalk(self._config, self._own, slots, marginals)


@block_config()
@dataclass(frozen=True, kw_only=True)
class DFlash2DecodingConfig(BlockRowsDecodingConfig):
    """DFlash2: the best path through the slots' candidates forms a chain; with topk or choices, a
    tree of such paths. Options: see `BlockDecodingConfig`."""

    method: ClassVar[str] = "dflash2"


def _conv_names(config: DFlash2Config) -> list[str]:
    layers = range(config.decoder.num_layers)
    return [f"layers.{layer}.{name}" for layer in layers for name in _CONVOLUTIONS]


_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def _fields(said: Said, headers: Mapping[str, Any]) -> Mapping[str, Any]:
    given = {key: said(key) for key in _SIZES}
    missing = [key for key, value in given.items() if type(value) is not int]
    if missing:
        raise ValueError(f"config.json does not say {', '.join(missing)}, whole numbers")
    return given


def _tensors(config: DFlash2Config) -> Tensors:
    hidden, taps = config.decoder.hidden_size, config.conv_kernel_size
    for name in _conv_names(config):
        yield f"{name}.base_kernel", f"{name}.base", (_SIDES, taps, hidden)
        shape = (config.conv_outputs, hidden)
        yield f"{name}.kernel_projection.weight", f"{name}.kernel.weight", shape
    names = {
        "selector.projection": "hidden_projection.weight",
        "selector.predecessors": "predecessor_codebook",
        "selector.successors": "successor_codebook",
    }
    for name, own in config.own_parts.items():
        yield f"candidate_selector.{names[name]}", name, own


DFLASH2_NETWORK = replace(
    block_kind(DFlash2Config, DFlash2Draft, __name__, PathRollout), stand_in=LoweredDFlash2
)
DFLASH2_FORMAT = BlockFormat(
    DFlash2DecodingConfig.method,
    DFlash2Config,
    "DFlash2",
    "dflash2",
    keys=frozenset(_SIZES),
    fields=_fields,
    tensors=_tensors,
    of_tokens=("selector.successors",),
)
