"""Tensor names of EAGLE drafts: one spelling for all formats, and what a config asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.draft_names import EMBEDDING, FC, HEAD
from checkpoint_converters.hf_decoder import HF_DECODER
from checkpoint_converters.names import Expected
from trtspec.config.layer_tensors import layer_tensors
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.parallel.shape import PEagleConfig

Q = "layers.0.self_attn.q_proj.weight"
OUT = "layers.0.self_attn.o_proj.weight"
GATE = "layers.0.mlp.gate_proj.weight"
FC_INPUT_NORM = "input_norm.weight"
FC_NORM = "fc_norm.0.weight"
MASK_HIDDEN = "mask_hidden"
D2T = "d2t"
T2D = "t2d"

IGNORED = (
    D2T,
    T2D,
    r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    r"verifier_(norm|lm_head)\.weight",
)
"""What nothing needs, or is read apart: the vocabulary's tables, what the config determines, and
the copies of the target's parts that speculators trains against."""

_PREFIXES = ("model.", "eagle_module.", "draft_model.")
_SPELLINGS = (
    (r"midlayer\.(?=\d+\.)", "layers."),
    (r"midlayer\.", "layers.0."),
    (r"aux_norm_low\.", "fc_norm.0."),
    (r"aux_norm_mid\.", "fc_norm.1."),
    (r"aux_norm_high\.", "fc_norm.2."),
    (r"draft_id_to_target_id$", D2T),
)


def normalise(headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """The tensors by common names: prefixes dropped, ``midlayer.`` read as ``layers.0.``.

    Raises CheckpointError when two tensors come to the same name.
    """
    found: dict[str, TensorHeader] = {}
    for original, header in headers.items():
        name = original
        while any(name.startswith(prefix) for prefix in _PREFIXES):
            name = name[name.index(".") + 1 :]
        for pattern, common in _SPELLINGS:
            name = re.sub(f"^{pattern}", common, name)
        if name in found:
            raise CheckpointError(
                f"{header.file}: tensors {found[name].name} and {original} are both {name}"
            )
        found[name] = header
    return found


def count_layers(headers: Mapping[str, TensorHeader]) -> int:
    """Decoder layers of a draft by its (common) tensor names."""
    layers = [re.match(r"layers\.(\d+)\.", name) for name in headers]
    return max((int(layer.group(1)) + 1 for layer in layers if layer), default=0)


def expected(config: EagleConfig) -> Expected:
    """(internal name, shape) of every weight of a draft, by common name; no vocabulary tables."""
    return {source: (target, shape) for source, target, shape in _all(config)}


def _all(config: EagleConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    hidden, vocab = config.decoder.hidden_size, config.decoder.vocab_size
    states = config.hidden_in
    yield FC, FC, (hidden, states if config.version == 3 else 2 * hidden)
    if config.fc_bias:
        yield "fc.bias", "fc.bias", (hidden,)
    if config.norm_before_fc:
        yield FC_INPUT_NORM, "fc_input_norm.weight", (states,)
    if config.fc_norm:
        for j in range(len(config.capture_layers)):
            name = f"fc_norm.{j}.weight"
            yield name, name, (config.target_hidden_size,)
    if config.input_norms:
        for name in ("embedding_norm.weight", "state_norm.weight"):
            yield name, name, (hidden,)
    for layer in range(config.decoder.num_layers):
        input_norm = layer > 0 or config.first_input_norm
        wide = layer == 0 and config.version == 3
        yield from layer_names(config.decoder, layer, input_norm, wide)
    if config.final_norm:
        yield "norm.weight", "norm.weight", (hidden,)
    if config.own_head:
        yield HEAD, "head.weight", (config.draft_vocab_size, hidden)
    if isinstance(config, PEagleConfig):
        yield MASK_HIDDEN, MASK_HIDDEN, (states,)
    if config.own_embedding:
        yield EMBEDDING, "embed.weight", (vocab, hidden)


def layer_names(
    decoder: ModelConfig, layer: int, input_norm: bool = True, wide: bool = False
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(common name, internal name, shape) of the weights of one decoder layer; a ``wide`` one reads
    an embedding and a state side by side."""
    hidden, own = decoder.hidden_size, f"layers.{layer}."
    width = 2 * hidden if wide else hidden
    tensors = layer_tensors(decoder.layers[layer], hidden, width, input_norm)
    if wide:
        yield own + "hidden_norm.weight", own + "hidden_norm.weight", (hidden,)
    for name, shape in tensors.items():
        yield own + _common(name), own + name, shape


def _common(name: str) -> str:
    """The common name of a layer's tensor, as Hugging Face's decoders have it."""
    ours = "layers.{i}." + name
    return HF_DECODER.names[ours].removeprefix("model.layers.{i}.")
