"""Names the parts of a model's specs that no block runs; they are refused before anything is
built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.layer import FeedForward, LayerSpec, Mixer
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.mixers.gated_delta import GatedDeltaSpec
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.ops.moe import ACTIVATIONS as EXPERT_ACTIVATIONS

MOST_KERNEL_HEAD = 256
"""Elements of a head that the CUDA kernels of attention take."""


def missing_blocks(config: ModelConfig) -> list[str]:
    """The parts of a decoder that no block runs, in words; empty where blocks run all of it."""
    found = dict.fromkeys(part for spec in config.layers.specs for part in _of_layer(spec))
    return list(dict.fromkeys((*found, *_of_model(config))))


def require_blocks(config: ModelConfig) -> None:
    """Raises:
    ConfigError: no block runs a part of the decoder; all such parts are named.
    """
    _refuse(missing_blocks(config), config.architecture)


def attention_of(spec: LayerSpec) -> AttentionSpec:
    """The mixer of a layer of a network that has attention alone.

    Raises:
        ConfigError: see `require_layer`; or its mixer is another.
    """
    require_layer(spec)
    if not isinstance(spec.mixer, AttentionSpec):
        raise ConfigError(
            f"a layer has a mixer of kind {spec.mixer.kind} where this version runs attention alone"
        )
    return spec.mixer


def mixer_of(spec: LayerSpec) -> AttentionSpec | LatentAttentionSpec:
    """The mixer of a layer of a language model that a block runs.

    Raises:
        ConfigError: see `require_layer`.
    """
    require_layer(spec)
    assert isinstance(spec.mixer, AttentionSpec | LatentAttentionSpec), "others were refused"
    return spec.mixer


def feed_forward_of(spec: LayerSpec) -> FeedForward:
    """The feed-forward part of a layer that a block runs.

    Raises:
        ConfigError: see `require_layer`.
    """
    require_layer(spec)
    assert spec.ffn is not None, "layers without one were refused"
    return spec.ffn


def dense_of(spec: LayerSpec) -> DenseSpec:
    """The same, of a layer that must have a dense one.

    Raises:
        ConfigError: see `require_layer`; or it has another part.
    """
    ffn = feed_forward_of(spec)
    if not isinstance(ffn, DenseSpec):
        raise ConfigError(f"a layer has a part of kind {ffn.kind}, where only a dense one can be")
    return ffn


def require_kernels(config: ModelConfig, device: str) -> None:
    """Raises:
    ConfigError: a device, cpu or cuda, has no kernel of an op that the decoder calls.
    """
    if device == "cpu":
        return
    for what in _without_kernels(config):
        raise ConfigError(
            f"{config.architecture} has {what} for {device} in this version; build it for a CPU "
            "(--device cpu)"
        )


def _without_kernels(config: ModelConfig) -> Iterator[str]:
    attentions = [m for m in _mixers(config) if isinstance(m, AttentionSpec)]
    if len(attentions) < len(_mixers(config)):
        yield "latent attention, whose op has no kernel"
    if any(m.sinks for m in attentions):
        yield "attention sinks, which no kernel of attention takes"
    if any(isinstance(spec.ffn, ExpertsSpec) for spec in config.layers.specs):
        yield "mixtures of experts, whose op has no kernel"
    largest = max((m.head_dim for m in attentions), default=0)
    if largest > MOST_KERNEL_HEAD:
        yield f"heads of {largest} elements, while attention takes {MOST_KERNEL_HEAD} at most"


def require_layer(spec: LayerSpec) -> None:
    """Raises:
    ConfigError: no block runs a part of the layer; all such parts are named.
    """
    _refuse(_of_layer(spec), "a layer")


def _refuse(missing: Iterable[str], what: str) -> None:
    parts = list(missing)
    if parts:
        raise ConfigError(
            f"{what} has {', '.join(parts)}, which this version does not run; it runs attention, "
            "latent attention, dense feed-forward parts and mixtures of experts"
        )


def _of_model(config: ModelConfig) -> Iterator[str]:
    if all(isinstance(m, AttentionSpec) and m.rope is None for m in _mixers(config)):
        yield "no layer with rotary embedding"


def _mixers(config: ModelConfig) -> list[Mixer]:
    return [spec.mixer for spec in config.layers.specs]


def _of_layer(spec: LayerSpec) -> Iterator[str]:
    yield from _of_mixer(spec.mixer)
    yield from _of_ffn(spec.ffn)
    if spec.parallel and (spec.per_layer is not None or spec.output_scale):
        yield "attention and feed-forward in parallel with per-layer embeddings or a scaled output"
    if spec.parallel and (spec.norm_place != "before" or spec.residual_scale != 1):
        yield "attention and feed-forward in parallel with norms behind them or scaled residuals"


def _of_mixer(mixer: Mixer) -> Iterator[str]:
    if isinstance(mixer, LatentAttentionSpec):
        return
    if not isinstance(mixer, AttentionSpec):
        is_delta = isinstance(mixer, GatedDeltaSpec)
        yield "the gated delta rule (linear attention)" if is_delta else "Mamba-2"
        return
    if mixer.qk_norm_over == "own" and mixer.qk_norm is not None and mixer.qk_norm.kind == "rms":
        yield "RMS norms of queries and keys with weights for each head"
    if mixer.gated:
        yield "gated attention"


def _of_ffn(ffn: FeedForward | None) -> Iterator[str]:
    if ffn is None:
        yield "layers without feed-forward"
        return
    if isinstance(ffn, ExpertsSpec):
        if not ffn.gated:
            yield "experts without a gate"
        if ffn.activation not in EXPERT_ACTIVATIONS:
            yield f"experts with the activation {ffn.activation}"
        if ffn.beside is not None:
            yield "a dense part beside experts"
