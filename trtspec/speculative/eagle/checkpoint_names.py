"""The tensors that the config of an EAGLE network asks for."""

from __future__ import annotations

from collections.abc import Iterator

from checkpoint_converters.draft_names import EMBEDDING, FC, HEAD, layer_names
from checkpoint_converters.hf_decoder import HF_DECODER
from checkpoint_converters.names import Expected, NameMap
from trtspec.speculative.eagle.shape import EagleConfig

FC_INPUT_NORM = "input_norm.weight"
FC_NORM = "fc_norm.0.weight"


def expected(config: EagleConfig, names: NameMap = HF_DECODER) -> Expected:
    """(internal name, shape) of every weight of a draft, by common name; no vocabulary tables.
    ``names``: what the tensors of its layers are called."""
    return {source: (target, shape) for source, target, shape in _all(config, names)}


def _all(config: EagleConfig, names: NameMap) -> Iterator[tuple[str, str, tuple[int, ...]]]:
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
        yield from layer_names(config.decoder, layer, input_norm, wide, names)
    if config.final_norm:
        yield "norm.weight", "norm.weight", (hidden,)
    if config.own_head:
        yield HEAD, "head.weight", (config.draft_vocab_size, hidden)
    if config.own_embedding:
        yield EMBEDDING, "embed.weight", (vocab, hidden)
