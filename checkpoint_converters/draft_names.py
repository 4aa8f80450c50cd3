"""Common names for the tensors of drafts, whatever their format calls them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.hf_decoder import HF_DECODER
from checkpoint_converters.names import NameMap
from trtspec.config.layer_tensors import layer_tensors
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
FC = "fc.weight"
Q = "layers.0.self_attn.q_proj.weight"
OUT = "layers.0.self_attn.o_proj.weight"
GATE = "layers.0.mlp.gate_proj.weight"
D2T = "d2t"
T2D = "t2d"

IGNORED = (
    D2T,
    T2D,
    r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    r"verifier_(norm|lm_head)\.weight",
)
"""Tensors that are unused or read elsewhere: the vocabulary's tables, what the config determines,
and copies of the target's parts that speculators trains against."""

_PREFIXES = ("model.", "eagle_module.", "draft_model.")
_SPELLINGS = (
    (r"midlayer\.(?=\d+\.)", "layers."),
    (r"midlayer\.", "layers.0."),
    (r"aux_norm_low\.", "fc_norm.0."),
    (r"aux_norm_mid\.", "fc_norm.1."),
    (r"aux_norm_high\.", "fc_norm.2."),
    (r"(?=(markov_w[12]|gate_proj|joint_proj)\.)", "markov_head."),
    (r"confidence_proj\.", "confidence_head.proj."),
    (r"draft_id_to_target_id$", D2T),
)


def normalise(headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """The tensors under common names: prefixes dropped, ``midlayer.`` read as ``layers.0.``.

    Raises CheckpointError if two tensors get the same name.
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
    """The number of decoder layers in a draft, from its (common) tensor names."""
    layers = [re.match(r"layers\.(\d+)\.", name) for name in headers]
    return max((int(layer.group(1)) + 1 for layer in layers if layer), default=0)


def layer_names(
    decoder: ModelConfig,
    layer: int,
    input_norm: bool = True,
    wide: bool = False,
    names: NameMap = HF_DECODER,
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(common name, internal name, shape) of each weight in one decoder layer; a ``wide`` one reads
    an embedding and a state side by side. ``names``: of a family's layers, used as the common names
    of this layer."""
    hidden, own = decoder.hidden_size, f"layers.{layer}."
    width = 2 * hidden if wide else hidden
    tensors = layer_tensors(decoder.layers[layer], hidden, width, input_norm)
    if wide:
        yield own + "hidden_norm.weight", own + "hidden_norm.weight", (hidden,)
    for name, shape in tensors.items():
        yield own + names.in_layer(name), own + name, shape
